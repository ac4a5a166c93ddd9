"""Run files: TOML and `--set section.option=value` -> a checked RunConfig, and back.

An unknown or ill-typed option is an error that names the nearest one; nothing has been written by
then.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from counterpoise.config import RunConfig
from counterpoise.config.check_options import checked
from counterpoise.config.search_options import SYNONYMS, find_remark, suggest_option
from counterpoise.errors import PoiseError, unknown
from counterpoise.plugins import OWN, is_own, pinned

SCHEMA = 1
OPTION_COUNT = "option_count"  # in a resolved run: how many options follow, to notice a torn file
# Where presets lie: in an installed wheel, and in a checkout
PRESETS = (Path(__file__).parents[1] / "runs", Path(__file__).parents[3] / "runs")


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """A TOML file, or the name of a preset in runs/, with `section.option=value` on top."""
    path = find_run(source)
    return from_tables(read_tables(path), overrides, where=str(path))


def read_tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise PoiseError(f"{path}: not a TOML file: {fault}") from fault
    except OSError as fault:
        raise PoiseError(f"{path}: cannot be read: {fault.strerror}") from fault


def find_run(source: str | Path) -> Path:
    """The file itself, or runs/SOURCE.toml of the package."""
    path = Path(source)
    if path.is_file():
        return path
    presets = {p.stem: p for folder in PRESETS for p in folder.glob("*.toml")}
    if str(source) in presets:
        return presets[str(source)]
    if path.is_dir():
        raise PoiseError(f"{path} is a folder; a run configuration is a TOML file")
    raise PoiseError(f"no such file, and {unknown('preset', str(source), presets)}")


def from_tables(
    tables: Mapping[str, Any], overrides: Sequence[str] = (), where: str = "config"
) -> RunConfig:
    """Sections as nested dictionaries -> a checked RunConfig."""
    merged: dict[str, dict[str, Any]] = {}
    sections = {f.name: f for f in dataclasses.fields(RunConfig)}
    for name, table in tables.items():
        if name == "schema":
            if table != SCHEMA:
                raise PoiseError(
                    f"{where}: schema {table} is not one this version reads ({SCHEMA})"
                )
            continue
        if name == OPTION_COUNT:  # only a stored run is held to it: store/resume.py
            continue
        if name == "experiment":  # arms, rates and seeds: lab/experiments/experiment_file.py
            continue
        if name not in sections:
            keys = list(table) if isinstance(table, Mapping) else [name]
            raise PoiseError(f"{where}: {_unknown_section(name, keys, sections)}")
        if not isinstance(table, Mapping):
            raise PoiseError(f"{where}: [{name}] must be a section of options")
        merged[name] = dict(table)
    given: dict[str, str] = {}  # where each overridden option was given
    for override in overrides:
        section, key, value = parse_override(override, sections)
        merged.setdefault(section, {})[key] = value
        given[f"{section}.{key}"] = f"--set {override}"
    hints = get_type_hints(RunConfig)
    read = {n: read_section(hints[n], n, merged.get(n, {}), where, given) for n in sections}
    return checked(RunConfig(**read))


def parse_override(text: str, sections: Mapping[str, Any]) -> tuple[str, str, Any]:
    """ "update.lr=3e-4" -> ("update", "lr", 0.0003); bare words are strings, [a, b] two of them."""
    name, equals, raw = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        suggestion = None if dot else suggest_option(section, options())
        like = f"{suggestion}={raw or 'VALUE'}" if suggestion else "update.lr=1e-4"
        raise PoiseError(f"--set {text}: write section.option=value, for example {like}")
    if section not in sections:
        raise PoiseError(f"--set {text}: {_unknown_section(section, [key], sections)}")
    try:
        value = tomllib.loads(f"v = {raw.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
        if value[:1] == "[" and value[-1:] == "]":  # shells take quotation marks away
            value = [word.strip() for word in value[1:-1].split(",")]
    return section, key, value


def read_section(
    kind: type, name: str, table: Mapping[str, Any], where: str, given: Mapping[str, str]
) -> Any:
    """One section's options, checked against the fields of `kind` (made by `config.option`)."""
    known = {f.name: f for f in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        place = given.get(f"{name}.{key}", where)
        if key not in known:
            raise PoiseError(f"{place}: in [{name}]: {_unknown_option(name, key, known)}")
        meta = known[key].metadata
        values[key] = _value(f"{name}.{key}", value, hints[key], meta, place)
        if OWN in meta["choices"]:
            folder = Path(where).parent if place == where else Path()
            values[key] = _pinned(f"{name}.{key}", values[key], folder, place)
    return kind(**values)


def _unknown_option(section: str, key: str, known: Iterable[str]) -> PoiseError:
    """The error for an unknown option: with one of another section, if that is what it means."""
    suggestion = suggest_option(f"{section}.{key}", options())
    # A name that is only misspelled belongs to its own section, whose choices are listed.
    if suggestion is None or (suggestion.startswith(f"{section}.") and key not in SYNONYMS):
        return unknown("option", key, known)
    remark = find_remark(key) or f"(`poise options {key}` lists what is like it)"
    return PoiseError(f"unknown option '{key}': did you mean '{suggestion}'? {remark}")


def _unknown_section(name: str, keys: Sequence[str], sections: Iterable[str]) -> PoiseError:
    """The error for an unknown section: with the option that its first key means elsewhere."""
    fault = unknown("section", name, sections)
    suggestion = suggest_option(keys[0], options()) if keys else None
    if suggestion is None or "did you mean" in str(fault):
        return fault
    return PoiseError(f"unknown section '{name}': did you mean '{suggestion}'?")


def _value(name: str, value: Any, kind: Any, meta: Mapping[str, Any], where: str) -> Any:
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        empty = value == [] and not meta["may_be_empty"]
        if not isinstance(value, list) or empty or any(type(v) is not item for v in value):
            like = f": write [{value}]" if item is str and isinstance(value, str) else ""
            raise PoiseError(
                f"{where}: {name} must be a list of {item.__name__}, not {value!r}{like}"
            )
        return value
    if kind is float and type(value) is int and abs(value) < 2**1023:
        value = float(value)
    if type(value) is not kind:
        raise PoiseError(f"{where}: {name} must be {_kind(kind)}, not {value!r}")
    own = OWN in meta["choices"] and is_own(value)
    if meta["choices"] and value not in meta["choices"] and not own:
        raise PoiseError(f"{where}: {name}: {unknown('value', value, meta['choices'])}")
    if kind is float and not math.isfinite(value):
        raise PoiseError(f"{where}: {name} must be a finite number, not {value!r}")
    low, high = meta["at_least"], meta["at_most"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
        raise PoiseError(f"{where}: {name} must be {bounds}, not {value!r}")
    return value


def _pinned(name: str, value: Any, folder: Path, where: str) -> Any:
    """Functions of the user's, in a list or alone; a run file means files beside it."""
    if isinstance(value, list):
        return [_pinned(name, item, folder, where) for item in value]
    try:
        return pinned(value, folder) if is_own(value) else value
    except PoiseError as fault:
        raise PoiseError(f"{where}: {name}: {fault}") from fault


def _kind(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}[kind]


def to_toml(config: RunConfig) -> str:
    """The resolved run, every option spelled out: what config.toml in a run folder holds."""
    lines = [f"schema = {SCHEMA}", f"{OPTION_COUNT} = {len(options())}"]
    for section in dataclasses.fields(config):
        lines += ["", f"[{section.name}]"]
        for key, value in dataclasses.asdict(getattr(config, section.name)).items():
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """JSON that is TOML too: no surrogate pairs, and DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def own_functions(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """Options that name functions of the user's -> these: {"verify.name": ("/a/b.py:f@...",)}."""
    found = {}
    for section in dataclasses.fields(config):
        table = getattr(config, section.name)
        for f in dataclasses.fields(table):
            if OWN in f.metadata["choices"]:
                value = getattr(table, f.name)
                names = value if isinstance(value, list) else [value]
                found[f"{section.name}.{f.name}"] = tuple(filter(is_own, names))
    return {option: names for option, names in found.items() if names}


def pins(config: RunConfig) -> list[str]:
    """Options that name functions of the user's, as --set takes them, with the files' content."""
    options = (option.partition(".")[::2] for option in own_functions(config))
    return [f"{s}.{key}={_toml(getattr(getattr(config, s), key))}" for s, key in options]


def options() -> list[tuple[str, str, str]]:
    """(name, default, documentation) of every option, in the order of the file."""
    rows = []
    for section in dataclasses.fields(RunConfig):
        for f in dataclasses.fields(get_type_hints(RunConfig)[section.name]):
            default = getattr(get_type_hints(RunConfig)[section.name](), f.name)
            choices = f" ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""
            rows.append(
                (f"{section.name}.{f.name}", json.dumps(default), f.metadata["doc"] + choices)
            )
    return rows
