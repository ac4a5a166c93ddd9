"""Import AReaL's rollouts from rollout/VERSION/TASK.jsonl (rollout.dump_to_file).

    FILEROOT/logs/USER/EXPERIMENT/TRIAL/rollout/5/42.jsonl

A task is a prompt with all its samples, and so a group. Each line is a sequence of tokens:

    task_id, sample_idx          its row in the task; rows that were not written leave gaps
    seqlen, prompt_len           tokens of the sequence, and before the first generated one
    head_version, tail_version   lowest and highest version of the weights that generated it
    version_rle                  [[version, tokens], ...] of the generated tokens
    reward                       of the workflow, before the trainer scales it
    original_reward              agents only: before normalisation in the group, if there was one
    prompt, completion           texts with special tokens
    segments                     [{"role", "len", "text"}, ...] if the model spoke several times;
                                 role is prompt, gen or context

Tokens, log-probabilities, advantages and whether a response was cut off are not written.

VERSION is the highest version of the task's tokens. The weights have version k after k training
steps. Iterations are numbered by VERSION, because the training step is not written: step k, counted
from 0, trains tasks of version k or older, and without asynchrony exactly those of version k.

Four traps. Tasks that should_accept_fn rejected are written like others. Task numbers start at 0
again after a restart, and on every rank that numbers tasks itself, so a file may hold several
tasks. An agent whose calls are exported one by one has a line for each call, and its prompts grow.
A sequence that ends in a message of the environment is not written.

Read in AReaL at cbff54d6: areal/infra/workflow_executor.py (`_dump_trajectory`) and
areal/infra/remote_inf_engine.py (`GroupedRolloutWorkflow`). Releases 1.0 write the same without
version_rle and segments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
)
from counterpoise.hosts.importing.json_lines import (
    check_step,
    is_step,
    peek_object,
    read_objects,
)
from counterpoise.hosts.importing.text_rollouts import name_prompt, text_rollout

KNOWN_FORMAT = "AReaL cbff54d6"
REQUIRED_FIELDS = ("task_id", "sample_idx", "tail_version", "reward", "prompt", "completion")
EVALUATION_FOLDER = "eval-rollout"
FILES_TO_RECOGNISE_BY = 8  # more than one, because the first may be damaged

Line = tuple[str, dict[str, Any]]  # where it stands, and its record


def find_files(path: Path) -> list[Path]:
    """The files of a trial's folder, of its rollout/ or of one version, by version and task.

    Or a file of any name. Files of evaluations are left out.
    """
    # A file is two levels below rollout/ or eval-rollout/.
    if EVALUATION_FOLDER in path.resolve().parts[-3 if path.is_file() else -2 :]:
        return []
    if path.is_file():
        return [path] if path.suffix == ".jsonl" and _is_task_file(path) else []
    for pattern in ("rollout/*/*.jsonl", "*/*.jsonl", "*.jsonl"):
        files = [
            file
            for file in path.glob(pattern)
            if file.stem.isdecimal() and _folder_version(file) is not None
        ]
        not_empty = (file for file in files if file.is_file() and file.stat().st_size)
        if any(map(_is_task_file, islice(not_empty, FILES_TO_RECOGNISE_BY))):
            return sorted(files, key=lambda file: (_folder_version(file), int(file.stem)))
    return []


def _is_task_file(file: Path) -> bool:
    return set(REQUIRED_FIELDS) <= peek_object(file).keys()


def _folder_version(file: Path) -> int | None:
    """The version that the file's folder is named by; -1 where AReaL knew no version."""
    folder = file.parent if file.parent.name not in ("", "..") else file.parent.resolve()
    return int(folder.name) if re.fullmatch("-1|[0-9]{1,9}", folder.name) else None


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    context.refuse_reward_option("writes one reward")
    context.notes.add(
        "an iteration is the version of the weights that generated a task's last tokens, not the "
        "step that trained it; the files do not say which tasks AReaL rejected"
    )
    files_of_task: Counter[str] = Counter()
    files_of_version: dict[int, list[Path]] = {}
    for file in files:
        version = _folder_version(file)
        files_of_version.setdefault(_last_version(file) if version is None else version, []).append(
            file
        )
    for version, version_files in sorted(files_of_version.items()):
        context.show_progress(f"version {version}")
        tasks = [lines for file in version_files if (lines := _read_task(file, context))]
        files_of_task.update(str(lines[0][1]["task_id"]) for lines in tasks)
        if version < 0:
            context.notes.count(
                "left out because their version is -1, which no weights have: {}",
                "rollout",
                sum(map(len, tasks)),
            )
            continue
        rollouts = [rollout for lines in tasks for rollout in _parse_task(lines, version, context)]
        if rollouts:
            yield ImportedStep(version, tuple(rollouts))
    context.notes.count(
        "in several versions: {}; several ranks wrote them, or AReaL was restarted, and versions "
        "that it repeated hold the rollouts of both times",
        "task number",
        sum(files > 1 for files in files_of_task.values()),
    )


def _last_version(file: Path) -> int:
    """The version of a file that does not lie in a folder of AReaL's any more."""
    return max(
        check_step(record["tail_version"], where)
        for where, record in read_objects(file, REQUIRED_FIELDS, KNOWN_FORMAT, lambda torn: None)
    )


def _read_task(file: Path, context: ImportContext) -> list[Line]:
    """The lines of a file, all of one task number."""
    lines: list[Line] = []
    for where, record in read_objects(
        file, REQUIRED_FIELDS, KNOWN_FORMAT, context.notes.name_torn_file
    ):
        for name in ("prompt", "completion"):
            if not isinstance(record[name], str):
                raise PoiseError(
                    f"{where}: '{name}' is not a text: was the file written by another tool?"
                )
        for name in ("task_id", "sample_idx"):
            if not is_step(record[name]):
                raise PoiseError(
                    f"{where}: {name} {str(record[name])[:40]!r} is not a whole number from 0: was "
                    "the file written by another tool?"
                )
        if lines and record["task_id"] != lines[0][1]["task_id"]:
            raise PoiseError(
                f"{where}: task {record['task_id']} in a file of task {lines[0][1]['task_id']}: "
                "import the files as AReaL wrote them"
            )
        lines.append((where, record))
    return lines


def _parse_task(
    lines: Sequence[Line], version: int, context: ImportContext
) -> Iterator[ImportedRollout]:
    names = _name_groups([record for _, record in lines], version, context)
    for (where, record), (group, prompt_id) in zip(lines, names, strict=True):
        _note_versions(record, context)
        original = record.get("original_reward")
        if original is not None and original != record["reward"]:
            context.notes.add("reward = original_reward, from before the normalisation in groups")
        rollout = text_rollout(
            prompt_id,
            group,
            record["prompt"],
            record["completion"],
            record["reward"] if original is None else original,
            where,
        )
        yield replace(rollout, segments=_parse_segments(record.get("segments"), where))


def _note_versions(record: dict[str, Any], context: ImportContext) -> None:
    """Count a rollout of several versions of the weights, or of a release without version_rle."""
    head, tail = record.get("head_version"), record["tail_version"]
    if is_step(head) and is_step(tail) and head < tail:
        context.notes.count("generated by several versions of the weights: {}", "rollout")
    if "version_rle" not in record:
        context.notes.count(
            "written without version_rle, as by AReaL 1.0: {}; where the model spoke several "
            "times, the prompt ends at a wrong place",
            "rollout",
        )


def _name_groups(
    records: Sequence[dict[str, Any]], version: int, context: ImportContext
) -> list[tuple[str, str]]:
    """(group, prompt id) of every line of a file.

    One task numbers its lines upwards; it has the id of its shortest prompt, which an agent's later
    prompts continue. Where numbers repeat, the lines are of several tasks and may be mixed, so only
    lines with equal prompts are taken together.
    """
    group = f"{version}:{records[0]['task_id']}"
    rows = [record["sample_idx"] for record in records]
    prompts = [record["prompt"] for record in records]
    if all(row < next_row for row, next_row in pairwise(rows)):
        context.notes.count(
            "missing in their groups: at least {}; AReaL does not write those that end in a "
            "message of the environment",
            "sequence",
            rows[-1] + 1 - len(rows),
        )
        if len(set(prompts)) > 1:
            context.notes.count(
                "a task with several prompts, such as an agent's calls, is one group with a "
                "rollout for each line: {}",
                "task",
            )
        return [(group, name_prompt("areal", min(prompts, key=len)))] * len(records)
    context.notes.count(
        "written by several tasks of one number: {}; there, rollouts with equal prompts are a "
        "group",
        "file",
    )
    last_rows: dict[str, int] = {}
    draws: Counter[str] = Counter()
    names = []
    for row, prompt in zip(rows, prompts, strict=True):
        prompt_id = name_prompt("areal", prompt)
        draws[prompt_id] += row <= last_rows.get(prompt_id, row)
        last_rows[prompt_id] = row
        names.append((f"{group}/{prompt_id}#{draws[prompt_id]}", prompt_id))
    return names


def _parse_segments(segments: Any, where: str) -> tuple[tuple[bool, str], ...]:
    """(whether the model generated it, text) of what follows the prompt."""
    if segments is None:
        return ()
    if not isinstance(segments, list) or not all(
        isinstance(segment, dict)
        and isinstance(segment.get("role"), str)
        and isinstance(segment.get("text"), str)
        for segment in segments
    ):
        raise PoiseError(
            f"{where}: 'segments' is not a list of roles and texts; the format of {KNOWN_FORMAT} "
            "can be read"
        )
    spans = [(segment["role"] == "gen", segment["text"]) for segment in segments]
    # AReaL calls the first segment that was not generated a prompt, even one after an answer.
    return tuple(spans if not spans or spans[0][0] else spans[1:])


SOURCE = RolloutSource(
    "AReaL",
    "rollout/VERSION/TASK.jsonl (rollout.dump_to_file)",
    find_files,
    read_steps,
    has_tokens=False,
)
