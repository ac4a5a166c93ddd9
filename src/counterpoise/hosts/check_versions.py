"""Check that the installed engines are the ones the adapters were written against.

The adapters override and call private methods of TRL and verl. Those methods, with the parameters
they had when the adapter was written, are listed in `hosts/*/host.py`. An untested version, or a
method that has changed since, is reported here with its remedy: one clear line instead of a wrong
gradient.

Every host module has `installed_version()`, `is_supported(version)` and `INSTALL_REMEDY`.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from counterpoise.errors import first_line

ADAPTER_REMEDY = (
    "install that version, or bring the adapter up to date: its host.py lists what it relies on"
)


@dataclass(frozen=True, slots=True)
class HostMethod:
    """One of TRL's or verl's functions or methods that may change without notice.

    Example:
        HostMethod("trl:GRPOTrainer", "_compute_loss", ("self", "model", "inputs"), overridden=True)
    """

    owner: str  # "module:Class", or "module:" for a function of the module
    name: str
    parameters: tuple[str, ...]  # as inspect.signature names them; the first ones, if `open_ended`
    overridden: bool = False  # False: the adapter only calls it
    open_ended: bool = False  # further parameters may follow

    @property
    def label(self) -> str:
        module, _, class_name = self.owner.partition(":")
        return f"{class_name or module}.{self.name}"


@dataclass(frozen=True, slots=True)
class EngineProbe:
    """How to find out whether one engine is usable.

    Example:
        EngineProbe("trl", "poise train --engine trl", "counterpoise.hosts.trl.host",
                    "SUPPORTED_SERIES", find_trl_changes)
    """

    name: str
    used_by: str  # the command or option that needs the engine
    host_module: str
    version_constant: str  # the host module's constant that holds the tested version
    find_changes: Callable[[Any], list[str]]  # host module -> changed methods, a line each


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """The state of one engine on this machine.

    Example:
        EngineHealth("trl", "1.17.0", "poise train --engine trl", "pip install 'trl==1.16.*'",
                     ("trl 1.17.0 was never tested with this Counterpoise; 1.16 was",))
    """

    name: str
    version: str | None  # None: not installed
    used_by: str
    remedy: str
    faults: tuple[str, ...] = ()  # a line each; empty when the engine is usable


def installed_version(package: str) -> str | None:
    """The version of an installed distribution; None where it is missing. Imports nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def load_owner(owner: str) -> Any:
    """The module or class that `module:Class` names; None where there is none.

    Example:
        >>> load_owner("collections:OrderedDict").__name__, load_owner("collections:Gone")
        ('OrderedDict', None)
    """
    module, _, class_name = owner.partition(":")
    try:
        loaded = import_module(module)
    except ImportError:
        return None
    return getattr(loaded, class_name, None) if class_name else loaded


def find_changed_methods(
    methods: Iterable[HostMethod],
    load: Callable[[str], Any] = load_owner,
    ignored_parameters: tuple[str, ...] = (),
) -> list[str]:
    """A line for each method that is gone or takes other parameters than the adapter expects."""
    faults = []
    for expected in methods:
        method = getattr(load(expected.owner), expected.name, None)
        if method is None:
            faults.append(f"{expected.label} is gone")
            continue
        parameters = inspect.signature(method).parameters
        names = tuple(name for name in parameters if name not in ignored_parameters)
        if expected.open_ended:
            names = names[: len(expected.parameters)]
        if names != expected.parameters:
            faults.append(f"{expected.label} takes ({', '.join(names)})")
    return faults


def _find_trl_changes(host: Any) -> list[str]:
    faults: list[str] = host.find_changes(import_module("trl").GRPOTrainer)
    return faults


def _find_verl_changes(host: Any) -> list[str]:
    faults: list[str] = host.find_changes()
    return faults


ENGINE_PROBES = (
    EngineProbe(
        name="trl",
        used_by="poise train --engine trl",
        host_module="counterpoise.hosts.trl.host",
        version_constant="SUPPORTED_SERIES",
        find_changes=_find_trl_changes,
    ),
    EngineProbe(
        name="verl",
        used_by="poise train --engine verl",
        host_module="counterpoise.hosts.verl.host",
        version_constant="SUPPORTED_VERSION",
        find_changes=_find_verl_changes,
    ),
    EngineProbe(
        name="vllm",
        used_by="sample.engine=vllm",
        host_module="counterpoise.sample.vllm_host",
        version_constant="SUPPORTED_SERIES",
        find_changes=lambda host: [],  # the sampler uses vLLM's public interface only
    ),
)


def probe_engine(engine: EngineProbe) -> EngineHealth:
    """Whether the engine is installed, tested with this version, and unchanged."""
    host = import_module(engine.host_module)
    version, remedy = host.installed_version(), host.INSTALL_REMEDY
    if version is None:
        return EngineHealth(engine.name, None, engine.used_by, remedy)
    if not host.is_supported(version):
        tested = getattr(host, engine.version_constant)
        fault = f"{engine.name} {version} was never tested with this Counterpoise; {tested} was"
        return EngineHealth(engine.name, version, engine.used_by, remedy, (fault,))
    try:
        faults = engine.find_changes(host)
    except Exception as fault:  # a package may raise anything while it is imported
        faults = [f"{engine.name} {version} cannot be imported: {first_line(fault)}"]
    return EngineHealth(engine.name, version, engine.used_by, remedy, tuple(faults))


def probe_engines() -> list[EngineHealth]:
    """The state of every engine, for `poise doctor`."""
    return [probe_engine(engine) for engine in ENGINE_PROBES]
