"""The plug-in that verl loads in every process, through the entry-point group `verl.plugins`.

On import it installs three things:

    a config check   verl's own check of the config also checks ours, before Ray starts. verl
                     swallows what a plug-in raises, so with an untested verl a run that uses our
                     options would continue without them. Here it stops with one line; runs
                     without our options continue.
    an import hook   once verl's trainers are imported, which only the training process does, ours
                     replace them and our estimators are registered.
    another one      once verl's workers are imported, they can measure a step (step_coupling.py),
                     keep hidden states for token weights (token_states.py) and weight whole
                     rollouts (trajectory_weights.py).
"""

from __future__ import annotations

import functools
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.verl import host, options
from counterpoise.hosts.verl.hook import call_after_import
from counterpoise.terminal import echo_message
from counterpoise.variants import ADVANTAGES


def install_trainers() -> None:
    """Register our estimators, and replace verl's trainers by ours.

    The registry keeps verl's names: under another name verl would choose the sampler of its
    asynchronous modes. With an untested verl nothing is changed.
    """
    if not host.is_supported(host.installed_version() or ""):
        return
    from verl.trainer.ppo.core_algos import register_adv_est
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    from counterpoise.hosts.verl.credit import make_estimator
    from counterpoise.hosts.verl.trainer import PlannedTrainer

    for name in ADVANTAGES:
        register_adv_est(options.ESTIMATOR_PREFIX + name)(make_estimator(name))
    for mode, trainer in TRAINER_REGISTRY.items():
        namespace = {"__module__": __name__}
        TRAINER_REGISTRY[mode] = type(
            f"Planned{trainer.__name__}", (PlannedTrainer, trainer), namespace
        )


def extend_workers() -> None:
    """Let verl's workers measure a step and weigh tokens, when the driver asks for it."""
    if host.is_supported(host.installed_version() or ""):
        from counterpoise.hosts.verl import step_coupling, token_states, trajectory_weights

        step_coupling.install_in_workers()
        token_states.install_in_workers()
        trajectory_weights.install_in_workers()  # last: the monitor sees weighted advantages


def install_config_check() -> None:
    """Make verl's check of the config check ours too."""
    from verl.utils import config as verl_config

    original = verl_config.validate_config

    @functools.wraps(original)
    def validate_config(config: Any, *args: Any, **kwargs: Any) -> None:
        try:
            if options.uses_adapter(config):
                host.require_version()  # first: the other two need a verl that they know
                options.check_config(config)
                host.require_verl()
        except PoiseError as fault:
            echo_message(f"counterpoise: {fault}")
            raise SystemExit(2) from fault
        original(config, *args, **kwargs)

    verl_config.validate_config = validate_config


# verl only imports this module: everything has to happen on import.
install_config_check()
call_after_import("verl.trainer.ppo.v1", install_trainers)
call_after_import("verl.workers.engine_workers", extend_workers)
