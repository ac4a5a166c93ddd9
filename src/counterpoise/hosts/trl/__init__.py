"""TRL's GRPO with batches made on purpose: change the import, add two arguments.

    from counterpoise.trl import PoiseConfig, PoiseGRPOTrainer

    args = PoiseConfig(..., composer="grouped", tau=0.25)
    PoiseGRPOTrainer(model, reward_funcs, args, train_dataset).train()

Generation, rewards, the loss and the optimizer stay TRL's. Ours are the credit, the balance and the
plan: which rollouts share an optimizer step, and what each token's advantage is.

    trainer.py   what is overridden      host.py     versions and signatures it rests on
    config.py    the options             samples.py  TRL's padded batch <-> single rollouts
    batch_rules.py    credit, balance, plan   row_layout.py   a step's rows by pass and process
    processes.py one decision for all    monitor.py  the microscope's numbers in TRL's logs
    native_rows.py    TRL's model as read by us    checkpoint.py  RB's waiting rows in TRL's own
    script_recorder.py    a folder for `poise report` and `poise look`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.hosts.trl.host import require

if TYPE_CHECKING:
    from counterpoise.hosts.trl.config import PoiseConfig
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

__all__ = ["PoiseConfig", "PoiseGRPOTrainer"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for, so that `host` can be read where TRL is missing or another one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require()
    from counterpoise.hosts.trl import config, trainer

    return config.PoiseConfig if name == "PoiseConfig" else trainer.PoiseGRPOTrainer
