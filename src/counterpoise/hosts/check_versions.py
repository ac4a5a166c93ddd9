"""Whether the engines that are installed are the ones the adapters were written against.

The adapters override and call private methods of TRL and verl; their names and parameters stand in
`hosts/*/host.py`. A version that was never tested, or a method that is no longer as it was, is
named here with what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from counterpoise.errors import first_line

MEND = "install that version, or bring the adapter up to date: its host.py lists what it rests on"


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine is asked about itself.

    Example:
        Engine("trl", "train --engine trl", "counterpoise.hosts.trl.host", "1.16")
    """

    name: str
    use: str
    host: str  # the module that knows it: installed(), supported(), REMEDY
    wanted: str  # its constant with the version
    changed: Callable[[Any], list[str]]  # what is no longer as it was


@dataclass(frozen=True, slots=True)
class Health:
    """What was found.

    Example:
        Health("trl", "1.17.0", "train --engine trl", ["TRL 1.17.0 is not supported, ..."])
    """

    name: str
    version: str | None  # None: not installed
    use: str
    remedy: str
    faults: tuple[str, ...] = ()  # a line each, none while it is as we know it


def _trl(host: Any) -> list[str]:
    faults: list[str] = host.changed(import_module("trl").GRPOTrainer)
    return faults


def _verl(host: Any) -> list[str]:
    faults: list[str] = host.changed()
    return faults


ENGINES = (
    Engine("trl", "poise train --engine trl", "counterpoise.hosts.trl.host", "SERIES", _trl),
    Engine("verl", "poise train --engine verl", "counterpoise.hosts.verl.host", "VERSION", _verl),
    Engine(
        "vllm", "sample.engine=vllm", "counterpoise.sample.vllm_host", "SERIES", lambda host: []
    ),
)


def look(engine: Engine) -> Health:
    host = import_module(engine.host)
    found, wanted = host.installed(), getattr(host, engine.wanted)
    if found is None:
        return Health(engine.name, None, engine.use, host.REMEDY)
    if not host.supported(found):
        fault = f"{engine.name} {found} was never tested with this version, {wanted} was"
        return Health(engine.name, found, engine.use, host.REMEDY, (fault,))
    try:
        faults = engine.changed(host)
    except Exception as fault:  # whatever a package raises while it is imported
        faults = [f"{engine.name} {found} cannot be imported: {first_line(fault)}"]
    return Health(engine.name, found, engine.use, host.REMEDY, tuple(faults))


def look_at_all() -> list[Health]:
    return [look(engine) for engine in ENGINES]
