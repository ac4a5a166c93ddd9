"""Run files: TOML and `--set section.option=value` -> a checked RunConfig, and back.

An unknown option or a value of the wrong type is an error, raised before anything is written; the
message names the nearest known option.
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
from counterpoise.config.check_options import check_config
from counterpoise.config.search_options import SYNONYMS, find_remark, suggest_option
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.plugins import PLUGIN_CHOICE, is_plugin, pin_plugin

SCHEMA = 1
OPTION_COUNT = (
    "option_count"  # in a resolved run: how many options follow, to detect a truncated file
)
# Where presets are: in an installed wheel, and in a checkout
PRESET_FOLDERS = (Path(__file__).parents[1] / "runs", Path(__file__).parents[3] / "runs")


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a TOML file or a preset of runs/, with overrides `section.option=value`."""
    path = find_run_file(source)
    return config_from_tables(read_tables(path), overrides, where=str(path))


def read_tables(path: Path) -> dict[str, Any]:
    """The sections of a run file as nested dictionaries, not yet checked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise PoiseError(f"{path}: not a TOML file: {fault}") from fault
    except OSError as fault:
        raise PoiseError(f"{path}: cannot be read: {fault.strerror}") from fault


def find_run_file(source: str | Path) -> Path:
    """The file itself, or runs/SOURCE.toml of the package."""
    path = Path(source)
    if path.is_file():
        return path
    presets = {p.stem: p for folder in PRESET_FOLDERS for p in folder.glob("*.toml")}
    if str(source) in presets:
        return presets[str(source)]
    if path.is_dir():
        raise PoiseError(f"{path} is a folder; a run configuration is a TOML file")
    raise PoiseError(f"no such file, and {unknown_name('preset', str(source), presets)}")


def config_from_tables(
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
    override_sources: dict[str, str] = {}  # where each overridden option was given
    for override in overrides:
        section, key, value = parse_override(override, sections)
        merged.setdefault(section, {})[key] = value
        override_sources[f"{section}.{key}"] = f"--set {override}"
    hints = get_type_hints(RunConfig)
    section_values = {
        n: read_section(hints[n], n, merged.get(n, {}), where, override_sources) for n in sections
    }
    return check_config(RunConfig(**section_values))


def parse_override(text: str, sections: Mapping[str, Any]) -> tuple[str, str, Any]:
    """ "update.lr=3e-4" -> ("update", "lr", 0.0003); bare words are strings, [a, b] two of them."""
    name, equals, raw = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        suggestion = None if dot else suggest_option(section, list_options())
        like = f"{suggestion}={raw or 'VALUE'}" if suggestion else "update.lr=1e-4"
        raise PoiseError(f"--set {text}: write section.option=value, for example {like}")
    if section not in sections:
        raise PoiseError(f"--set {text}: {_unknown_section(section, [key], sections)}")
    try:
        value = tomllib.loads(f"v = {raw.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
        if value[:1] == "[" and value[-1:] == "]":  # the shell has removed the quotation marks
            value = [word.strip() for word in value[1:-1].split(",")]
    return section, key, value


def read_section(
    kind: type, name: str, table: Mapping[str, Any], where: str, given: Mapping[str, str]
) -> Any:
    """One section's options, checked against the fields of `kind` (made by `config.option`)."""
    known_options = {f.name: f for f in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        source = given.get(f"{name}.{key}", where)
        if key not in known_options:
            raise PoiseError(f"{source}: in [{name}]: {_unknown_option(name, key, known_options)}")
        meta = known_options[key].metadata
        values[key] = _check_value(f"{name}.{key}", value, hints[key], meta, source)
        if PLUGIN_CHOICE in meta["choices"]:
            # A path given by --set is relative to the working directory, not to the run file.
            folder = Path(where).parent if source == where else Path()
            values[key] = _pin_plugins(f"{name}.{key}", values[key], folder, source)
    return kind(**values)


def _unknown_option(section: str, key: str, known: Iterable[str]) -> PoiseError:
    """The error for an unknown option: with one of another section, if that is what it means."""
    suggestion = suggest_option(f"{section}.{key}", list_options())
    # A name that is only misspelled belongs to its own section, whose choices are listed.
    if suggestion is None or (suggestion.startswith(f"{section}.") and key not in SYNONYMS):
        return unknown_name("option", key, known)
    remark = find_remark(key) or f"(`poise options {key}` lists what is like it)"
    return PoiseError(f"unknown option '{key}': did you mean '{suggestion}'? {remark}")


def _unknown_section(name: str, keys: Sequence[str], sections: Iterable[str]) -> PoiseError:
    """The error for an unknown section: with the option that its first key means elsewhere."""
    fault = unknown_name("section", name, sections)
    suggestion = suggest_option(keys[0], list_options()) if keys else None
    if suggestion is None or "did you mean" in str(fault):
        return fault
    return PoiseError(f"unknown section '{name}': did you mean '{suggestion}'?")


def _check_value(name: str, value: Any, kind: Any, meta: Mapping[str, Any], where: str) -> Any:
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        empty = value == [] and not meta["may_be_empty"]
        if not isinstance(value, list) or empty or any(type(v) is not item for v in value):
            like = f": write [{value}]" if item is str and isinstance(value, str) else ""
            raise PoiseError(
                f"{where}: {name} must be a list of {item.__name__}, not {value!r}{like}"
            )
        return value
    # TOML reads `1` as an integer; a larger one would overflow in float().
    if kind is float and type(value) is int and abs(value) < 2**1023:
        value = float(value)
    if type(value) is not kind:
        raise PoiseError(f"{where}: {name} must be {_describe_type(kind)}, not {value!r}")
    is_plugin_name = PLUGIN_CHOICE in meta["choices"] and is_plugin(value)
    if meta["choices"] and value not in meta["choices"] and not is_plugin_name:
        raise PoiseError(f"{where}: {name}: {unknown_name('value', value, meta['choices'])}")
    if kind is float and not math.isfinite(value):
        raise PoiseError(f"{where}: {name} must be a finite number, not {value!r}")
    low, high = meta["at_least"], meta["at_most"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
        raise PoiseError(f"{where}: {name} must be {bounds}, not {value!r}")
    return value


def _pin_plugins(name: str, value: Any, folder: Path, where: str) -> Any:
    """Pin the plugins of an option; paths in a run file are relative to that file's folder."""
    if isinstance(value, list):
        return [_pin_plugins(name, item, folder, where) for item in value]
    try:
        return pin_plugin(value, folder) if is_plugin(value) else value
    except PoiseError as fault:
        raise PoiseError(f"{where}: {name}: {fault}") from fault


def _describe_type(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}[kind]


def to_toml(config: RunConfig) -> str:
    """The resolved run with every option: the content of config.toml in a run folder."""
    lines = [f"schema = {SCHEMA}", f"{OPTION_COUNT} = {len(list_options())}"]
    for section in dataclasses.fields(config):
        lines += ["", f"[{section.name}]"]
        for key, value in dataclasses.asdict(getattr(config, section.name)).items():
            lines.append(f"{key} = {_format_toml(value)}")
    return "\n".join(lines) + "\n"


def _format_toml(value: Any) -> str:
    """A value as JSON that is also valid TOML: no surrogate pairs, and DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def find_plugin_options(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """The plugins that each option names, such as {"verify.name": ("/a/b.py:f@...",)}."""
    plugins_by_option = {}
    for section in dataclasses.fields(config):
        table = getattr(config, section.name)
        for f in dataclasses.fields(table):
            if PLUGIN_CHOICE in f.metadata["choices"]:
                value = getattr(table, f.name)
                names = value if isinstance(value, list) else [value]
                plugins_by_option[f"{section.name}.{f.name}"] = tuple(filter(is_plugin, names))
    return {option: names for option, names in plugins_by_option.items() if names}


def plugin_overrides(config: RunConfig) -> list[str]:
    """`--set` overrides that repeat the plugins of a run, each pinned to its file's content."""
    options = (option.partition(".")[::2] for option in find_plugin_options(config))
    return [f"{s}.{key}={_format_toml(getattr(getattr(config, s), key))}" for s, key in options]


def list_options() -> list[tuple[str, str, str]]:
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
