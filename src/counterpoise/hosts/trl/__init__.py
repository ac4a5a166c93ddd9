"""TRL's GRPO with planned batches: change the import, add two arguments.

    from counterpoise.trl import PoiseConfig, PoiseGRPOTrainer

    args = PoiseConfig(..., composer="grouped", tau=0.25)
    PoiseGRPOTrainer(model, reward_funcs, args, train_dataset).train()

Generation, rewards, the loss and the optimizer stay TRL's. Credit, balance and plan are ours: which
rollouts share an optimizer step, and what each token's advantage is.

    trainer.py          the overridden methods       host.py        TRL's version and signatures
    config.py           the options                  padding.py     TRL's padded batch <-> rollouts
    planner.py          credit, balance, plan        row_layout.py  rows by pass and process
    processes.py        one decision for all         rewards.py     the sum of reward functions
    native_policy.py    our forward on TRL's model   monitor.py     the microscope in TRL's logs
    checkpoint.py       RB's waiting rows and probes, saved
    script_recorder.py  a folder for `poise report` and `poise look`; recorder.py  what it shares
    script_probes.py    held-out answers
    callback.py, observed_trainer.py                 the folder of a stock trainer

    run.py, run_trainer.py, run_recorder.py, run_options.py    `poise train --engine trl`
    vllm_engine.py      TRL's vLLM, for `--engine trl` and for `poise bench`
    importer.py         `poise import` of TRL's files
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.hosts.trl.host import require_trl

if TYPE_CHECKING:
    from counterpoise.hosts.trl.callback import PoiseCallback
    from counterpoise.hosts.trl.config import PoiseConfig
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

__all__ = ["PoiseCallback", "PoiseConfig", "PoiseGRPOTrainer"]


def __getattr__(name: str) -> Any:
    """Import lazily, so that `host` works where TRL is missing or has another version."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_trl()
    from counterpoise.hosts.trl import callback, config, trainer

    module = {"PoiseCallback": callback, "PoiseConfig": config, "PoiseGRPOTrainer": trainer}[name]
    return getattr(module, name)
