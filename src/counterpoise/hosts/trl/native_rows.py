"""TRL's model as the native engine reads it: for token weights and for the microscope.

Both look at hidden states and whole distributions, which TRL's loss does not hand out. So process 0
reads its rows once more with the native forward, over the same weights and in their precision. The
model must be one which that forward knows, and whole on the process: sharded by FSDP or DeepSpeed,
or under PEFT's adapters, its weights are not what is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.errors import PoiseError
from counterpoise.model.decoder import check_architecture
from counterpoise.model.load import Policy, wrap_model

if TYPE_CHECKING:
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

MICRO_TOKENS = 16384  # of one pass


def check_whole(trainer: PoiseGRPOTrainer, option: str, remedy: str) -> None:
    """Refuse before training what the native forward cannot read, naming who asked for it."""
    from trl.trainer.grpo_trainer import is_peft_model

    host = ""
    if trainer.is_fsdp_enabled:
        host = "FSDP"
    elif trainer.is_deepspeed_enabled:
        host = "DeepSpeed"
    elif is_peft_model(trainer.model):
        host = "PEFT"
    if host:
        raise PoiseError(f"{option} reads a whole model, not one under {host}: {remedy}")
    try:
        check_architecture(trainer.model.config)
    except PoiseError as fault:
        raise PoiseError(f"{option}: {fault}, or {remedy}") from fault


def native(trainer: PoiseGRPOTrainer) -> Policy:
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    training = model.training
    policy = wrap_model("trl", model, trainer.processing_class)
    model.train(training)  # as_policy turns dropout off; TRL keeps its own mode
    return policy
