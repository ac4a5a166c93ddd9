"""What the engines of an experiment's runs lack on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import host as trl_host
from counterpoise.hosts.trl.vllm_engine import check_vllm_version
from counterpoise.lab.experiments.design import Design, RunKey
from counterpoise.model.load import choose_device
from counterpoise.sample import vllm_host


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


def check_installed(engine: str, config: RunConfig) -> None:
    """Raise an error if a package that the run needs is missing; imports none of them."""
    device = choose_device(config.model.device).type
    uses_vllm = config.sample.engine == "vllm"
    if engine == "trl":
        trl_host.check_version()
        if uses_vllm:
            check_vllm_version("sample.engine=vllm", device)
    elif uses_vllm:
        vllm_host.check_version("sample.engine=vllm", device)
