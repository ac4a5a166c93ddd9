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
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from counterpoise.config import RunConfig
from counterpoise.config.check_options import check_config
from counterpoise.config.search_options import SYNONYMS, find_remark, suggest_option
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.plugins import PLUGIN_CHOICE, is_plugin, pin_plugin

SCHEMA = 1
# In a resolved run: how many options follow, to detect a truncated file.
OPTION_COUNT = "option_count"
# (section, option, value) -> defaults for other options of the section while the option has that
# value, because their general defaults would be wrong.
# GSPO's ratio is a mean over the tokens of a response, which scatters far less than a token's:
# with GRPO's range nothing would ever be clipped.
DEPENDENT_DEFAULTS = {
    ("update", "surrogate", "gspo"): {"clip_low": 3e-4, "clip_high": 4e-4},
}
# Where presets are: in an installed wheel, and in a checkout.
PRESET_FOLDERS = (Path(__file__).parents[1] / "runs", Path(__file__).parents[3] / "runs")


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a TOML file or a preset of runs/, with overrides `section.option=value`."""
    path = find_run_file(source)
    return config_from_tables(read_tables(path), overrides, where=str(path))


def read_tables(path: Path) -> dict[str, Any]:
    """The sections of a run file as nested dictionaries, not yet checked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:  # not TOML, not UTF-8, or a number with thousands of digits
        raise PoiseError(f"{path}: not a TOML file: {fault}") from fault
    except OSError as fault:
        raise PoiseError(f"{path}: cannot be read: {fault.strerror}") from fault


def find_run_file(source: str | Path) -> Path:
    """The file itself, or runs/SOURCE.toml of the package."""
    path = Path(source)
    if path.is_file():
        return path
    presets = {preset.stem: preset for folder in PRESET_FOLDERS for preset in folder.glob("*.toml")}
    if str(source) in presets:
        return presets[str(source)]
    if path.is_dir():
        raise PoiseError(f"{path} is a folder; a run configuration is a TOML file")
    raise PoiseError(f"no such file, and {unknown_name('preset', str(source), presets)}")


def config_from_tables(
    tables: Mapping[str, Any], overrides: Sequence[str] = (), where: str = "config"
) -> RunConfig:
    """Sections as nested dictionaries -> a checked RunConfig."""
    merged_tables: dict[str, dict[str, Any]] = {}
    sections = {field.name: field for field in dataclasses.fields(RunConfig)}
    for section_name, table in tables.items():
        if section_name == "schema":
            if table != SCHEMA:
                raise PoiseError(
                    f"{where}: schema {table} is not one this version reads ({SCHEMA})"
                )
            continue
        # store/resume.py checks the count, lab/experiments/experiment_file.py reads the experiment.
        if section_name in (OPTION_COUNT, "experiment"):
            continue
        if section_name not in sections:
            option_names = list(table) if isinstance(table, Mapping) else [section_name]
            raise PoiseError(f"{where}: {_unknown_section(section_name, option_names, sections)}")
        if not isinstance(table, Mapping):
            raise PoiseError(f"{where}: [{section_name}] must be a section of options")
        merged_tables[section_name] = dict(table)
    override_sources: dict[str, str] = {}  # where each overridden option was given
    for override in overrides:
        override_section, option_name, value = parse_override(override, sections)
        merged_tables.setdefault(override_section, {})[option_name] = value
        override_sources[f"{override_section}.{option_name}"] = f"--set {override}"
    for (section_name, option_name, value), defaults in DEPENDENT_DEFAULTS.items():
        section_table = merged_tables.get(section_name, {})
        if section_table.get(option_name) == value:
            merged_tables[section_name] = {**defaults, **section_table}
    section_types = _field_types(RunConfig)
    section_values = {
        section_name: read_section(
            section_types[section_name],
            section_name,
            merged_tables.get(section_name, {}),
            where,
            override_sources,
        )
        for section_name in sections
    }
    return check_config(RunConfig(**section_values))


@cache
def _field_types(config_class: type) -> Mapping[str, Any]:
    """The types of a class's fields. Cached: Python evaluates the annotations at every call,
    which is most of the time that loading a configuration takes."""
    return get_type_hints(config_class)


def parse_override(override: str, sections: Mapping[str, Any]) -> tuple[str, str, Any]:
    """ "update.lr=3e-4" -> ("update", "lr", 0.0003); bare words are strings, [a, b] two of them."""
    name, equals_sign, raw_value = override.partition("=")
    section, dot, option_name = name.strip().partition(".")
    if not equals_sign or not dot or not option_name:
        suggestion = None if dot else suggest_option(section, list_options())
        example = f"{suggestion}={raw_value or 'VALUE'}" if suggestion else "update.lr=1e-4"
        raise PoiseError(f"--set {override}: write section.option=value, for example {example}")
    if section not in sections:
        raise PoiseError(f"--set {override}: {_unknown_section(section, [option_name], sections)}")
    return section, option_name, _parse_value(raw_value.strip())


def _parse_value(raw_value: str) -> Any:
    """A value as TOML writes it; else a list without quotation marks, or the text itself."""
    try:
        tables = tomllib.loads(f"v = {raw_value}")
    except ValueError:  # not TOML, or a number with thousands of digits
        tables = {}
    # Further lines would be further keys, and no option is a date.
    if set(tables) == {"v"} and isinstance(tables["v"], bool | int | float | str | list):
        return tables["v"]
    # The shell may have removed the quotation marks inside a list.
    if raw_value[:1] == "[" and raw_value[-1:] == "]":
        return [word.strip() for word in raw_value[1:-1].split(",")]
    return raw_value


def read_section(
    section_class: type,
    section_name: str,
    table: Mapping[str, Any],
    where: str,
    override_sources: Mapping[str, str],
) -> Any:
    """One section's options, checked against the fields of `section_class`.

    The fields are declared by `config.option`. An error names the source of the value: `where`, or
    the override in `override_sources`.
    """
    known_options = {field.name: field for field in dataclasses.fields(section_class)}
    option_types = _field_types(section_class)
    checked_values = {}
    for option_name, value in table.items():
        value_source = override_sources.get(f"{section_name}.{option_name}", where)
        if option_name not in known_options:
            fault = _unknown_option(section_name, option_name, known_options)
            raise PoiseError(f"{value_source}: in [{section_name}]: {fault}")
        metadata = known_options[option_name].metadata
        checked_values[option_name] = _check_value(
            f"{section_name}.{option_name}",
            value,
            option_types[option_name],
            metadata,
            value_source,
        )
        if PLUGIN_CHOICE in metadata["choices"]:
            # A path given by --set is relative to the working directory, not to the run file.
            folder = Path(where).parent if value_source == where else Path()
            checked_values[option_name] = _pin_plugins(
                f"{section_name}.{option_name}", checked_values[option_name], folder, value_source
            )
    return section_class(**checked_values)


def _unknown_option(section: str, option_name: str, known_options: Iterable[str]) -> PoiseError:
    """The error for an unknown option; it suggests another section's option if that is meant."""
    suggestion = suggest_option(f"{section}.{option_name}", list_options())
    # A name that is only misspelled belongs to its own section, whose choices are listed.
    if suggestion is None or (suggestion.startswith(f"{section}.") and option_name not in SYNONYMS):
        return unknown_name("option", option_name, known_options)
    remark = find_remark(option_name) or f"(`poise options {option_name}` lists what is like it)"
    return PoiseError(f"unknown option '{option_name}': did you mean '{suggestion}'? {remark}")


def _unknown_section(
    section_name: str, option_names: Sequence[str], sections: Iterable[str]
) -> PoiseError:
    """The error for an unknown section; it suggests what the section's first option may mean."""
    fault = unknown_name("section", section_name, sections)
    suggestion = suggest_option(option_names[0], list_options()) if option_names else None
    if suggestion is None or "did you mean" in str(fault):
        return fault
    return PoiseError(f"unknown section '{section_name}': did you mean '{suggestion}'?")


def _check_value(
    option_name: str, value: Any, option_type: Any, metadata: Mapping[str, Any], source: str
) -> Any:
    """The value, with a whole number made a float where needed; raises if it is not allowed."""
    if get_origin(option_type) is list:
        (item_type,) = get_args(option_type)
        _check_list(option_name, value, item_type, metadata, source)
        return value
    # Seeds and sizes of numpy and torch have 64 bits. The number itself may be too long to print.
    if type(value) is int and abs(value) >= (2**1023 if option_type is float else 2**63):
        raise PoiseError(f"{source}: {option_name} is too large a number")
    if option_type is float and type(value) is int:  # TOML reads `1` as an integer
        value = float(value)
    if type(value) is not option_type:
        raise PoiseError(
            f"{source}: {option_name} must be {_describe_type(option_type)}, not {value!r}"
        )
    is_plugin_name = PLUGIN_CHOICE in metadata["choices"] and is_plugin(value)
    if metadata["choices"] and value not in metadata["choices"] and not is_plugin_name:
        raise PoiseError(
            f"{source}: {option_name}: {unknown_name('value', value, metadata['choices'])}"
        )
    if option_type is float and not math.isfinite(value):
        raise PoiseError(f"{source}: {option_name} must be a finite number, not {value!r}")
    lower_limit, upper_limit = metadata["at_least"], metadata["at_most"]
    if (lower_limit is not None and not value >= lower_limit) or (
        upper_limit is not None and not value <= upper_limit
    ):
        bounds = (
            f"at least {lower_limit:g}"
            if upper_limit is None
            else f"between {lower_limit:g} and {upper_limit:g}"
        )
        raise PoiseError(f"{source}: {option_name} must be {bounds}, not {value!r}")
    return value


def _check_list(
    option_name: str, value: Any, item_type: type, metadata: Mapping[str, Any], source: str
) -> None:
    is_list = isinstance(value, list) and all(type(entry) is item_type for entry in value)
    if is_list and (value or metadata["may_be_empty"]):
        return
    if value == []:
        raise PoiseError(f"{source}: {option_name} must not be empty")
    suggestion = f": write [{json.dumps(value)}]" if type(value) is item_type else ""
    raise PoiseError(
        f"{source}: {option_name} must be a list of {item_type.__name__}, not {value!r}{suggestion}"
    )


def pin_override(override: str, folder: Path, source: str) -> str:
    """An override from a file, such as an arm's: its plugins are looked up in the file's folder.

    Example:
        >>> pin_override("credit.weights=mine.py:f", Path("/lab"), "/lab/arms.toml")
        'credit.weights="/lab/mine.py:f@1f0c6a2b9d3e4f50"'
    """
    try:
        section, option_name, value = parse_override(override, _field_types(RunConfig))
    except PoiseError:  # reading the run's options will say what is wrong, and where
        return override
    if not takes_plugins(section, option_name):
        return override
    pinned_value = _pin_plugins(f"{section}.{option_name}", value, folder, source)
    if pinned_value == value:
        return override
    return f"{section}.{option_name}={_format_toml(pinned_value)}"


def takes_plugins(section: str, option_name: str) -> bool:
    """Whether an option may name a plugin; in others a colon is only a colon."""
    section_class = _field_types(RunConfig).get(section)
    fields = dataclasses.fields(section_class) if section_class else ()
    return any(
        field.name == option_name and PLUGIN_CHOICE in field.metadata["choices"] for field in fields
    )


def _pin_plugins(option_name: str, value: Any, folder: Path, source: str) -> Any:
    """Pin the plugins of an option; paths in a run file are relative to that file's folder."""
    if isinstance(value, list):
        return [_pin_plugins(option_name, item, folder, source) for item in value]
    if not isinstance(value, str):  # reading the run's options will refuse it
        return value
    try:
        return pin_plugin(value, folder) if is_plugin(value) else value
    except PoiseError as fault:
        raise PoiseError(f"{source}: {option_name}: {fault}") from fault


def _describe_type(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}[kind]


def to_toml(config: RunConfig) -> str:
    """The resolved run with every option: the content of config.toml in a run folder."""
    toml_lines = [f"schema = {SCHEMA}", f"{OPTION_COUNT} = {len(list_options())}"]
    for section in dataclasses.fields(config):
        toml_lines += ["", f"[{section.name}]"]
        for option_name, value in dataclasses.asdict(getattr(config, section.name)).items():
            toml_lines.append(f"{option_name} = {_format_toml(value)}")
    return "\n".join(toml_lines) + "\n"


def _format_toml(value: Any) -> str:
    """A value as JSON that is also valid TOML: no surrogate pairs, and DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def find_plugin_options(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """The plugins that each option names, such as {"verify.name": ("/a/b.py:f@...",)}."""
    plugins_by_option = {}
    for section in dataclasses.fields(config):
        section_config = getattr(config, section.name)
        for field in dataclasses.fields(section_config):
            if PLUGIN_CHOICE in field.metadata["choices"]:
                value = getattr(section_config, field.name)
                candidates = value if isinstance(value, list) else [value]
                plugins_by_option[f"{section.name}.{field.name}"] = tuple(
                    filter(is_plugin, candidates)
                )
    return {option: candidates for option, candidates in plugins_by_option.items() if candidates}


def plugin_overrides(config: RunConfig) -> list[str]:
    """`--set` overrides that repeat the plugins of a run, each pinned to its file's content."""
    options = (option.partition(".")[::2] for option in find_plugin_options(config))
    return [
        f"{section}.{option_name}={_format_toml(getattr(getattr(config, section), option_name))}"
        for section, option_name in options
    ]


def list_options() -> list[tuple[str, str, str]]:
    """(name, default, documentation) of every option, in the order of the file."""
    return list(_option_rows())


@cache
def _option_rows() -> tuple[tuple[str, str, str], ...]:
    """Made once: every config.toml and every checkpoint counts the options."""
    option_rows = []
    section_types = _field_types(RunConfig)
    for section in dataclasses.fields(RunConfig):
        section_defaults = section_types[section.name]()
        for field in dataclasses.fields(section_defaults):
            default = getattr(section_defaults, field.name)
            choices = (
                f" ({', '.join(field.metadata['choices'])})" if field.metadata["choices"] else ""
            )
            option_rows.append(
                (
                    f"{section.name}.{field.name}",
                    json.dumps(default),
                    field.metadata["doc"] + choices,
                )
            )
    return tuple(option_rows)
