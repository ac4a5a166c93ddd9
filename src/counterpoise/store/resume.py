"""Choose the configuration of a resumed run, and refuse to resume if something was lost.

The stored config.toml decides. It must hold every option that was written, agree with the copy in
the newest checkpoint, and not be contradicted by a run file or --set.
"""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.load import OPTION_COUNT, config_from_tables, list_options, load_config
from counterpoise.errors import PoiseError, first_line, format_ranges
from counterpoise.files import remove_path
from counterpoise.store import checkpoint
from counterpoise.store.finished import FINISHED_FILE
from counterpoise.store.folder import (
    CHECKPOINTS,
    CONFIG,
    CONTAMINATION,
    MODEL,
    STEP_FILES,
    VOCABULARY,
    RunFolder,
    is_run,
)

PROBE_OPTIONS = ("monitor.probe", "monitor.probe_every", "monitor.probe_refresh")
# Options that do not change what a run computes, except for rounding; `forbidden_differences` has
# the exceptions.
CHANGEABLE_OPTIONS = {
    "loop.iterations", "loop.checkpoint_every", "loop.keep_checkpoints", "verify.workers",
    "verify.reward_timeout_seconds",
    "update.micro_tokens", "update.checkpointing", "monitor.every", "monitor.tokens",
    *PROBE_OPTIONS, "track.to",
}  # fmt: skip

# Version 0.1.0 wrote no option_count into config.toml and had this many options. Options that were
# added later are not expected in its folders.
OPTIONS_OF_0_1_0 = 95
# Settings of credit methods are stored only where the user gave them, and these defaults changed
# after version 0.2.0, when a run had this many options. Runs begun before keep the old values.
OPTIONS_WITH_OLD_CREDIT = 114
OLD_CREDIT_SETTINGS = {
    "oar_p": {"passes": "7"},
    "oar_g": {"draws": "1"},
    "shear": {"width": "100", "stride": "25"},
}
MAX_NAMED = 4  # missing sections and options that a message names


@dataclass(frozen=True, slots=True)
class ResumePermissions:
    """What the user allows `--resume` to lose; nothing by default."""

    from_start: bool = False  # remove what the run has written and restart from iteration 0
    missing_logs: bool = False  # continue without lost lines or files of past iterations


STRICT = ResumePermissions()


# -- the configuration --------------------------------------------------------------------------


def load_config_to_resume(
    out: Path, requested: RunConfig | None, overrides: list[str], *, from_start: bool = False
) -> RunConfig:
    """The options of a resumed run, from the run file `requested` or else from its config.toml.

    The run file has the overrides (--set) applied already; config.toml gets them here. With
    `from_start` nothing that the run computed is kept, so every option may have another value.
    Training writes a missing or truncated config.toml back.
    """
    options_copy = checkpoint.newest_intact_options(out / CHECKPOINTS)
    if options_copy is None or is_run(out):
        # Raises the reason if the folder is not a run.
        RunFolder.open(out)
    damage = find_config_damage(out / CONFIG)
    if not damage:
        _refuse_first_form(out)
    if from_start and requested is not None:
        return requested
    if damage:
        return _replace_damaged_config(out, damage, requested, options_copy)
    if from_start:
        return load_stored_config(out / CONFIG, overrides)
    return _continue_config(out, requested, overrides, options_copy)


def _refuse_first_form(out: Path) -> None:
    if _is_of_first_form(tomllib.loads((out / CONFIG).read_text(encoding="utf-8"))):
        raise PoiseError(
            f"{out} was written by the first form of version 0.1.0, which did not store what a "
            "resumed run needs: poise report reads it; to train, start a new --out"
        )


def _replace_damaged_config(
    out: Path, damage: str, requested: RunConfig | None, options_copy: Path | None
) -> RunConfig:
    """The run file, provided that it agrees with the copy in the newest checkpoint."""
    if requested is None or options_copy is None:
        raise PoiseError(f"{out / CONFIG} {damage}: {_config_remedy(out, options_copy)}")
    options_text = options_copy.read_text(encoding="utf-8")
    check_checkpoint_options(out, options_copy.parent.name, options_text, requested)
    return requested


def _continue_config(
    out: Path, requested: RunConfig | None, overrides: list[str], options_copy: Path | None
) -> RunConfig:
    """The run file or config.toml; new values only for options in CHANGEABLE_OPTIONS."""
    stored_config = load_stored_config(out / CONFIG)
    if options_copy is not None:
        options_text = options_copy.read_text(encoding="utf-8")
        check_checkpoint_options(
            out, options_copy.parent.name, options_text, stored_config, who_says=f"{CONFIG} says"
        )
    resumed_config = requested or load_stored_config(out / CONFIG, overrides)
    for option, stored_value, requested_value in forbidden_differences(
        stored_config, resumed_config
    ):
        raise PoiseError(
            f"{out} was made with {option}={stored_value!r}, not {requested_value!r}: "
            "resume without that change, start a new --out, or (not with verl) add --from-start to "
            "discard the run"
        )
    return resumed_config


def find_config_damage(path: Path) -> str:
    """What is wrong with a stored config.toml, as the end of a sentence; "" if nothing is.

    Invalid values are left to `load_config`.
    """
    if not path.is_file():
        return "is missing"
    content = path.read_bytes()
    if not content.strip(b"\0 \t\r\n"):
        return "is empty"
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        return f"is torn, not a TOML file ({first_line(fault)})"
    expected_count = tables.get(OPTION_COUNT, OPTIONS_OF_0_1_0)
    if not isinstance(expected_count, int):
        return f"is damaged ({OPTION_COUNT}={expected_count!r} is not a number)"
    present_count = sum(len(table) for table in tables.values() if isinstance(table, dict))
    if present_count >= expected_count or _is_of_first_form(tables):
        return ""
    missing_options = [option for option, _, _ in list_options() if not _has_option(tables, option)]
    summary = _summarize_missing(missing_options)
    return f"holds {present_count} of its {expected_count} options and lacks {summary}"


def check_checkpoint_options(
    out: Path,
    checkpoint_name: str,
    options_text: str,
    config: RunConfig,
    who_says: str = "this run has",
) -> None:
    """Check that a checkpoint's options.toml and `config` agree in options that must not change.

    Older checkpoints have no options.toml: their `options_text` is empty. In the message, the value
    in `config` follows the words `who_says`.
    """
    if not options_text:
        return
    options_path = out / CHECKPOINTS / checkpoint_name / checkpoint.OPTIONS_FILE
    saved_config = config_from_checkpoint(options_text, options_path)
    for option, saved_value, current_value in forbidden_differences(saved_config, config):
        raise PoiseError(
            f"{out}: {who_says} {option}={current_value!r}, but checkpoint {checkpoint_name} was "
            f"made with {option}={saved_value!r}: give it that value again, or start a new --out"
        )


def config_from_checkpoint(options_text: str, path: Path) -> RunConfig:
    """The configuration in a checkpoint's options.toml, whose text and path are given."""
    tables = tomllib.loads(options_text)
    return with_old_credit_settings(config_from_tables(tables, where=str(path)), tables)


def load_stored_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a run folder, with the values that its version had as defaults."""
    config = load_config(path, overrides)  # first: it explains what is wrong with a damaged file
    stored_tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return with_old_credit_settings(config, stored_tables)


def with_old_credit_settings(config: RunConfig, stored_tables: Mapping[str, Any]) -> RunConfig:
    """A stored configuration with the credit settings that were the defaults when it was written.

    Example: a folder of version 0.2.0 with credit.weights = "oar_g" and no settings gets draws=1.
    """
    option_count = stored_tables.get(OPTION_COUNT, OPTIONS_OF_0_1_0)
    if not isinstance(option_count, int) or option_count > OPTIONS_WITH_OLD_CREDIT:
        return config
    given_names = {setting.partition("=")[0].strip() for setting in config.credit.settings}
    old_settings = [
        f"{name}={value}"
        for name, value in OLD_CREDIT_SETTINGS.get(config.credit.weights, {}).items()
        if name not in given_names
    ]
    if not old_settings:
        return config
    credit = dataclasses.replace(config.credit, settings=[*config.credit.settings, *old_settings])
    return dataclasses.replace(config, credit=credit)


def forbidden_differences(
    first_config: RunConfig, second_config: RunConfig
) -> list[tuple[str, object, object]]:
    """The `config_differences` that a resumed run may not have."""
    changeable = set(CHANGEABLE_OPTIONS)
    # A schedule decays over all iterations: with more of them, past steps would have had other
    # learning rates. So does the strength of some rules.
    if first_config.decays_over_run:
        changeable -= {"loop.iterations"}
    # Half of the probes then decides token weights or the choice of prompts.
    if first_config.steers_by_probes:
        changeable -= set(PROBE_OPTIONS)
    return [
        difference
        for difference in config_differences(first_config, second_config)
        if difference[0] not in changeable
    ]


def config_differences(
    first_config: RunConfig, second_config: RunConfig
) -> list[tuple[str, object, object]]:
    """(option, first value, second value) of every option that differs."""
    differences = []
    for section in dataclasses.fields(first_config):
        first_section = getattr(first_config, section.name)
        second_section = getattr(second_config, section.name)
        for option in dataclasses.fields(first_section):
            first_value = getattr(first_section, option.name)
            second_value = getattr(second_section, option.name)
            if first_value != second_value:
                differences.append((f"{section.name}.{option.name}", first_value, second_value))
    return differences


def _is_of_first_form(tables: dict[str, Any]) -> bool:
    """Whether a config.toml is of the first form of 0.1.0, which had 65 options and no [monitor].

    In later forms [monitor] stands before [store], so a truncated file cannot be mistaken for one
    of the first form.
    """
    return (
        OPTION_COUNT not in tables
        and "monitor" not in tables
        and _has_option(tables, "store.tokens")
    )


def _has_option(tables: dict[str, Any], option: str) -> bool:
    section, _, option_name = option.partition(".")
    table = tables.get(section)
    return isinstance(table, dict) and option_name in table


def _summarize_missing(missing_options: list[str]) -> str:
    """Missing options, with whole sections named once: "[balance], update.lr".

    Example:
        >>> _summarize_missing(["track.to", "update.lr"])
        '[track], update.lr'
    """
    all_options = [option for option, _, _ in list_options()]
    short_names: dict[str, None] = {}  # an ordered set: a section appears once
    for option in missing_options:
        section = option.partition(".")[0]
        section_options = [name for name in all_options if name.startswith(f"{section}.")]
        lacks_section = set(section_options) <= set(missing_options)
        short_names[f"[{section}]" if lacks_section else option] = None
    more = f" and {len(short_names) - MAX_NAMED} more" if len(short_names) > MAX_NAMED else ""
    return ", ".join(list(short_names)[:MAX_NAMED]) + more


def _config_remedy(out: Path, options_copy: Path | None) -> str:
    if options_copy is None:
        return "restore it from a backup, as no checkpoint here holds a copy of it"
    command = shlex.join(["poise", "train", str(options_copy), "--resume", "--out", str(out)])
    return f"{command} uses the copy in its newest checkpoint; the original run file works as well"


# -- starting again -----------------------------------------------------------------------------


def check_restart(folder: RunFolder) -> None:
    """Refuse to start again from iteration 0 if the run must have saved a checkpoint.

    A run that is killed before its first checkpoint is due may start again. While it saves the
    first one, its logs already hold that iteration: only what is written afterwards, a later
    iteration or an evaluation, proves that the checkpoint was complete.
    """
    last_reached = last_iteration(folder)
    remedy = (
        "restore checkpoints/ from a backup, or discard the run and start it again with "
        "--resume --from-start"
    )
    if damaged_checkpoints := checkpoint.list_checkpoints(folder.checkpoints):
        damaged_iterations = [checkpoint.iteration_of(path) for path in damaged_checkpoints]
        raise PoiseError(
            f"{folder.path} reached iteration {last_reached}, but none of its checkpoints can be "
            f"used (those of iterations {format_ranges(damaged_iterations)} are damaged): {remedy}"
        )
    checkpoint_interval = folder.read_config().loop.checkpoint_every
    last_evaluated = max(
        (line["iteration"] for log in ("evaluations", "benchmarks") for line in folder.read(log)),
        default=0,
    )
    last_due = max(last_reached - 1, last_evaluated) // checkpoint_interval * checkpoint_interval
    has_ended = (folder.path / FINISHED_FILE).exists() or (folder.path / MODEL).exists()
    if has_ended or last_due > 0:
        progress = (
            "had ended"
            if has_ended
            else f"reached iteration {last_reached} and had saved one at {last_due}"
        )
        raise PoiseError(f"{folder.path} {progress}, but its checkpoints are gone: {remedy}")


def last_iteration(folder: RunFolder) -> int:
    """The last iteration with anything in the logs or step files; 0 if there is none."""
    logs = ("metrics", "plans", "drops", "memory")
    iterations_in_logs = [line["iteration"] for log in logs for line in folder.read(log)]
    iterations_with_files = [
        iteration for kind in STEP_FILES for iteration in folder.step_files(kind)
    ]
    return max([*iterations_in_logs, *iterations_with_files], default=0)


def discard_run(folder: RunFolder) -> None:
    """Remove a run's logs, step files, checkpoints and model; safe to repeat if interrupted.

    What was made from its problems and its model goes too: the next run may have others. Its
    options stay, or are those of the next run; pages stay until the next run writes its own.
    """
    for name in (FINISHED_FILE, MODEL, CHECKPOINTS, VOCABULARY, CONTAMINATION):
        remove_path(folder.path / name)
    folder.rewind(-1)
