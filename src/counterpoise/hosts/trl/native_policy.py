"""Read TRL's model with the native forward, for token weights and for the microscope.

Both need hidden states and whole distributions, which TRL's loss does not return. So process 0 runs
the native forward over the rows of all processes, with the same weights in their precision. It
works for any causal language model (`model/general.py`), with or without a LoRA adapter, as long as
the process holds the whole model: under FSDP or DeepSpeed the module's own weights are not the
trained ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy, wrap_model
from counterpoise.terminal import echo_message

if TYPE_CHECKING:
    from counterpoise.hosts.trl.observed_trainer import ObservedTrainer
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

MICRO_TOKENS = 16384  # tokens of one pass, until memory runs out
READING_REMEDY = (
    "set monitor_every=0, probe=0 and credit_weights='uniform', or lower max_completion_length"
)


def check_native_forward(
    trainer: PoiseGRPOTrainer | ObservedTrainer, option: str, remedy: str
) -> None:
    """Raise before training if the native forward cannot read the model; `option` needs it."""
    wrapper = ""
    if trainer.is_fsdp_enabled:
        wrapper = "FSDP"
    elif trainer.is_deepspeed_enabled:
        wrapper = "DeepSpeed"
    if wrapper:
        raise PoiseError(f"{option} reads a whole model, not one under {wrapper}: {remedy}")


def new_micro_batch() -> FittedSize:
    """The tokens of one pass of the native forward over TRL's rows."""
    return FittedSize(MICRO_TOKENS, notify=notify, remedy=READING_REMEDY)


def notify(message: str) -> None:
    echo_message(f"counterpoise: {message}")


def as_native_policy(trainer: PoiseGRPOTrainer | ObservedTrainer) -> Policy:
    """TRL's model, sharing its weights, as the native engine's policy."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    policy = wrap_model("trl", model, trainer.processing_class)
    model.train(was_training)  # wrap_model switches dropout off; TRL needs its own mode back
    return policy
