"""QB, RB, token credit and the microscope inside TRL: change one import, add two arguments.

from counterpoise.trl import PoiseConfig, PoiseGRPOTrainer

args = PoiseConfig(..., composer="grouped", tau=0.25)
PoiseGRPOTrainer(model, reward_funcs, args, train_dataset).train()

`PoiseCallback` only records: trainer.add_callback(PoiseCallback(trainer, "out/poise")).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.hosts import trl

if TYPE_CHECKING:
    from counterpoise.hosts.trl.callback import PoiseCallback
    from counterpoise.hosts.trl.config import PoiseConfig
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

__all__ = ["PoiseCallback", "PoiseConfig", "PoiseGRPOTrainer"]


def __getattr__(name: str) -> Any:
    """TRL is imported when one of the classes is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(trl, name)
