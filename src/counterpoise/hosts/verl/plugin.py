"""What verl loads by the entry-point group `verl.plugins`, in every process, when it is imported.

It leaves two things behind, and is quick about it:

    a guard   verl's own check of the config also checks ours, before Ray starts. verl swallows what
              a plug-in raises: with a verl we do not know, a run that asks for anything of ours
              would go on without it. So it stops here, with one line; others go on.
    a hook    once verl's trainers are imported, which only the process that trains does, ours take
              their places and our estimators are registered.
"""

from __future__ import annotations

import functools
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.verl import host, options
from counterpoise.hosts.verl.hook import when_imported
from counterpoise.terminal import echo_message
from counterpoise.variants import ADVANTAGES


def take_places() -> None:
    """Our estimators, and our trainers in place of verl's.

    They keep verl's names: under another one verl would choose the sampler of its asynchronous
    modes. With a verl we do not know, nothing is touched.
    """
    if not host.supported(host.installed() or ""):
        return
    from verl.trainer.ppo.core_algos import register_adv_est
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    from counterpoise.hosts.verl.credit import estimator
    from counterpoise.hosts.verl.trainer import Planned

    for name in ADVANTAGES:
        register_adv_est(options.PREFIX + name)(estimator(name))
    for mode, trainer in TRAINER_REGISTRY.items():
        named = {"__module__": __name__}
        TRAINER_REGISTRY[mode] = type(f"Planned{trainer.__name__}", (Planned, trainer), named)


def guard() -> None:
    """Have verl's check of the config check ours too."""
    from verl.utils import config as verl_config

    plain = verl_config.validate_config

    @functools.wraps(plain)
    def validate_config(config: Any, *args: Any, **kwargs: Any) -> None:
        try:
            if options.asked(config):
                host.require_version()
                options.check(config)
                host.require()
        except PoiseError as refused:
            echo_message(f"counterpoise: {refused}")
            raise SystemExit(2) from refused
        plain(config, *args, **kwargs)

    verl_config.validate_config = validate_config


guard()
when_imported("verl.trainer.ppo.v1", take_places)
