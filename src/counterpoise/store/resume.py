"""Choose the configuration of a resumed run, and refuse to resume if something was lost.

The stored config.toml decides. It must hold every option that was written, agree with the copy in
the newest checkpoint, and not be contradicted by a run file or --set.
"""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.load import OPTION_COUNT, config_from_tables, list_options, load_config
from counterpoise.errors import PoiseError, first_line, format_ranges
from counterpoise.files import remove_path
from counterpoise.store import checkpoint
from counterpoise.store.finished import FINISHED_FILE as FINISHED
from counterpoise.store.folder import CHECKPOINTS, CONFIG, MODEL, STEP_FILES, RunFolder, is_run

# Options that do not change what a run computes, except for rounding.
CHANGEABLE_OPTIONS = {
    "loop.iterations", "loop.checkpoint_every", "loop.keep_checkpoints", "verify.workers",
    "update.micro_tokens", "update.checkpointing", "monitor.every", "monitor.tokens",
    "track.to",
}  # fmt: skip

# Version 0.1.0 wrote no option_count into config.toml and had this many options. Options that were
# added later are not expected in its folders.
OPTIONS_OF_0_1_0 = 95
MAX_NAMED = 4  # missing sections and options that a message names


@dataclass(frozen=True, slots=True)
class ResumePermissions:
    """What the user allows `--resume` to lose; nothing by default."""

    from_start: bool = False  # remove what the run has written and restart from iteration 0
    missing_logs: bool = False  # continue without lost lines or files of past iterations


STRICT = ResumePermissions()


# -- the configuration --------------------------------------------------------------------------


def load_config_to_resume(
    out: Path, requested: RunConfig | None, overrides: list[str]
) -> RunConfig:
    """The run's own config.toml; only options in CHANGEABLE_OPTIONS may be given another value.

    A missing or truncated config.toml is replaced by `requested`, provided that it agrees with the
    copy in the newest checkpoint; training then writes it back.
    """
    copy = checkpoint.newest_intact_options(out / CHECKPOINTS)
    if copy is None or is_run(out):
        RunFolder.open(out)  # raises the reason if the folder is not a run
    if damage := find_config_damage(out / CONFIG):
        if requested is None or copy is None:
            raise PoiseError(f"{out / CONFIG} {damage}: {_config_remedy(out, copy)}")
        check_checkpoint_options(out, copy.parent.name, copy.read_text(encoding="utf-8"), requested)
        return requested
    stored_config = load_config(out / CONFIG)
    if copy is not None:
        text = copy.read_text(encoding="utf-8")
        check_checkpoint_options(
            out, copy.parent.name, text, stored_config, source=f"{CONFIG} says"
        )
    resumed_config = requested or load_config(out / CONFIG, overrides)
    for name, stored_value, requested_value in forbidden_differences(stored_config, resumed_config):
        raise PoiseError(
            f"{out} was made with {name}={stored_value!r}, not {requested_value!r}: "
            "resume without it, or start a new --out"
        )
    return resumed_config


def find_config_damage(path: Path) -> str:
    """What is wrong with a stored config.toml, as the end of a sentence; "" if nothing is.

    Invalid values are left to `load_config`.
    """
    if not path.is_file():
        return "is missing"
    text = path.read_text(encoding="utf-8", errors="replace")
    if not text.strip("\0 \t\r\n"):
        return "is empty"
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        return f"is torn, not a TOML file ({first_line(fault)})"
    count = tables.get(OPTION_COUNT, OPTIONS_OF_0_1_0)
    if not isinstance(count, int):
        return f"is damaged ({OPTION_COUNT}={count!r} is not a number)"
    present = sum(len(table) for table in tables.values() if isinstance(table, dict))
    if present >= count:
        return ""
    missing = [name for name, _, _ in list_options() if not _has_option(tables, name)]
    return f"holds {present} of its {count} options and lacks {_summarize_missing(missing)}"


def check_checkpoint_options(
    out: Path, name: str, text: str, config: RunConfig, source: str = "this run has"
) -> None:
    """Check that options.toml of checkpoint `name` agrees with `config` in what must not vary.

    Older checkpoints have no options.toml.
    """
    if not text:
        return
    where = str(out / CHECKPOINTS / name / checkpoint.OPTIONS_FILE)
    saved_config = config_from_tables(tomllib.loads(text), where=where)
    for option, saved_value, current_value in forbidden_differences(saved_config, config):
        raise PoiseError(
            f"{out}: {source} {option}={current_value!r}, but checkpoint {name} was made with "
            f"{option}={saved_value!r}: give it that value again, or start a new --out"
        )


def forbidden_differences(a: RunConfig, b: RunConfig) -> list[tuple[str, object, object]]:
    """`config_differences` in options that a resumed run may not change."""
    return [
        difference
        for difference in config_differences(a, b)
        if difference[0] not in CHANGEABLE_OPTIONS
    ]


def config_differences(a: RunConfig, b: RunConfig) -> list[tuple[str, object, object]]:
    """(option, value in a, value in b) of every option that differs."""
    differences = []
    for section in dataclasses.fields(a):
        section_a, section_b = getattr(a, section.name), getattr(b, section.name)
        for f in dataclasses.fields(section_a):
            value_a, value_b = getattr(section_a, f.name), getattr(section_b, f.name)
            if value_a != value_b:
                differences.append((f"{section.name}.{f.name}", value_a, value_b))
    return differences


def _has_option(tables: dict[str, Any], name: str) -> bool:
    section, _, key = name.partition(".")
    table = tables.get(section)
    return isinstance(table, dict) and key in table


def _summarize_missing(missing: list[str]) -> str:
    """Missing options, with whole sections named once: "[balance], update.lr".

    Example:
        >>> _shown(["track.to", "update.lr"])
        '[track], update.lr'
    """
    every = [name for name, _, _ in list_options()]
    summary: dict[str, None] = {}
    for name in missing:
        section = f"{name.partition('.')[0]}."
        whole_section = all(option in missing for option in every if option.startswith(section))
        summary[f"[{section[:-1]}]" if whole_section else name] = None
    more = f" and {len(summary) - MAX_NAMED} more" if len(summary) > MAX_NAMED else ""
    return ", ".join(list(summary)[:MAX_NAMED]) + more


def _config_remedy(out: Path, copy: Path | None) -> str:
    if copy is None:
        return "bring it back from a backup, since no checkpoint here holds a copy of it"
    command = shlex.join(["poise", "train", str(copy), "--resume", "--out", str(out)])
    return f"{command} takes the copy of its newest checkpoint; the original run file does as well"


# -- starting again -----------------------------------------------------------------------------


def check_restart(folder: RunFolder) -> None:
    """Refuse to start again from iteration 0 when a checkpoint must have been there.

    A run that is killed before its first checkpoint was due legitimately starts again. While it
    saves the first one, its logs already hold that iteration: only what is written afterwards, a
    later iteration or an evaluation, proves that the checkpoint was complete.
    """
    reached = last_iteration(folder)
    remedy = "bring checkpoints/ back from a backup, or discard the run and start it again with"
    command = f"{remedy} --resume --from-start"
    if unusable := checkpoint.list_checkpoints(folder.checkpoints):
        numbers = format_ranges(
            sorted(int(p.name.removeprefix(checkpoint.PREFIX)) for p in unusable)
        )
        raise PoiseError(
            f"{folder.path} reached iteration {reached}, but none of its checkpoints can be used "
            f"(those of iterations {numbers} are damaged): {command}"
        )
    every = folder.read_config().loop.checkpoint_every
    evaluated = max((line["iteration"] for line in folder.read("evaluations")), default=0)
    due = max(reached - 1, evaluated) // every * every
    has_ended = (folder.path / FINISHED).exists() or (folder.path / MODEL).exists()
    if has_ended or due > 0:
        past = (
            "had ended" if has_ended else f"reached iteration {reached} and had saved one at {due}"
        )
        raise PoiseError(f"{folder.path} {past}, but its checkpoints are gone: {command}")


def last_iteration(folder: RunFolder) -> int:
    """The last iteration with anything in the logs or step files; 0 if there is none."""
    logs = ("metrics", "plans", "drops")
    logged = [line["iteration"] for log in logs for line in folder.read(log)]
    iterations_with_files = [
        iteration for kind in STEP_FILES for iteration in folder.step_files(kind)
    ]
    return max([*logged, *iterations_with_files], default=0)


def discard_run(folder: RunFolder) -> None:
    """Remove everything a run has written except its options; safe to repeat if interrupted."""
    for name in (FINISHED, MODEL, CHECKPOINTS):
        remove_path(folder.path / name)
    folder.rewind(-1)
