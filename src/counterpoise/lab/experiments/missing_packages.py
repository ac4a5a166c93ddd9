"""What the engines of an experiment's runs lack on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.hosts.choose_engine import check_installed
from counterpoise.lab.experiments.design import Design, RunKey


def missing_packages(design: Design, keys: Iterable[RunKey]) -> list[str]:
    """A line for every reason why some of these runs cannot start, with their arms."""
    arms_by_fault: dict[str, list[str]] = {}
    for key in {key.arm: key for key in keys}.values():
        config = load_config(design.base, list(design.overrides(key)))
        try:
            check_installed(design.engine(key), config)
        except PoiseError as fault:
            arms_by_fault.setdefault(str(fault), []).append(key.arm)
    return [f"{', '.join(arms)}: {fault}" for fault, arms in arms_by_fault.items()]
