"""Read TRL's model with the native forward, for token weights and for the microscope.

Both need hidden states and whole distributions, which TRL's loss does not return. So process 0 runs
the native forward over its rows, with the same weights in their precision. The model must be one
that the native forward supports, and complete on the process: under FSDP, DeepSpeed or PEFT the
module's own weights are not the trained ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.errors import PoiseError
from counterpoise.model.families import check_architecture
from counterpoise.model.load import Policy, wrap_model

if TYPE_CHECKING:
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

MICRO_TOKENS = 16384  # tokens of one pass


def check_native_forward(trainer: PoiseGRPOTrainer, option: str, remedy: str) -> None:
    """Raise before training if the native forward cannot read the model; `option` needs it."""
    from trl.trainer.grpo_trainer import is_peft_model

    wrapper = ""
    if trainer.is_fsdp_enabled:
        wrapper = "FSDP"
    elif trainer.is_deepspeed_enabled:
        wrapper = "DeepSpeed"
    elif is_peft_model(trainer.model):
        wrapper = "PEFT"
    if wrapper:
        raise PoiseError(f"{option} reads a whole model, not one under {wrapper}: {remedy}")
    try:
        check_architecture(trainer.model.config, trainer.accelerator.device.type)
    except PoiseError as fault:
        raise PoiseError(f"{option}: {fault}, or {remedy}") from fault


def as_native_policy(trainer: PoiseGRPOTrainer) -> Policy:
    """TRL's model, sharing its weights, as the native engine's policy."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    policy = wrap_model("trl", model, trainer.processing_class)
    model.train(was_training)  # wrap_model switches dropout off; TRL needs its own mode back
    return policy
