"""Import prime-rl's traces of steps: rollouts/step_N/train/{effective,all}/traces.jsonl.

The form before the trace stream, until August 2026. `effective` holds what was trained in step N,
in one optimizer step; `all` holds what arrived while step N was collected. Traces of `all` that are
in no `effective` file are stored with the step in which they arrived, and are in no plan. An
episode in `effective` has its trained traces only; in `all` it has all of them. Neither says what
the trainer's log-probabilities were.

Read in prime-rl at 559b4477 (monitors/file.py) and 9975d886~1 (orchestrator/utils.py), where a line
is a trace instead of an episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    Schedule,
)
from counterpoise.hosts.importing.json_lines import peek_object, read_objects
from counterpoise.hosts.prime_rl.trace_rollouts import (
    EVALUATION,
    FAILED,
    KNOWN_VERSIONS,
    episode_rollouts,
    is_episode,
    is_trace,
    is_training,
    list_traces,
)

SUBSETS = ("effective", "all")  # in the order of reading: trained traces come first


def find_files(path: Path) -> list[Path]:
    """Look in the run's folder, its rollouts, a step, or at one file."""
    if path.is_file():
        return [path] if recognises_file(path) else []
    folders = ("", "train/", "step_*/train/", "rollouts/step_*/train/")
    files = [
        file
        for folder in folders
        for subset in SUBSETS
        for file in path.glob(f"{folder}{subset}/traces.jsonl")
        if recognises_file(file)
    ]
    return sorted(files, key=lambda file: (step_of_file(file), SUBSETS.index(file.parent.name)))


def recognises_file(file: Path) -> bool:
    return (
        file.name == "traces.jsonl"
        and file.parent.name in SUBSETS
        and step_of_file(file) >= 0
        and (not file.stat().st_size or is_episode(peek_object(file)))
    )


def step_of_file(file: Path) -> int:
    """The number of the folder step_N that the file is in; -1 outside of such a folder."""
    for folder in file.absolute().parents:
        prefix, _, number = folder.name.rpartition("_")
        if prefix == "step" and number.isdecimal():
            return int(number)
    return -1


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    context.refuse_reward_option("writes one reward")
    files_of_step: dict[int, list[Path]] = {}
    for file in files:
        files_of_step.setdefault(step_of_file(file), []).append(file)
    context.show_progress("reading which traces were trained")
    trained_ids = {
        str(trace.get("id"))
        for file in files
        if file.parent.name == "effective"
        for _, episode in read_objects(file, (), "", context.notes.name_torn_file)
        for trace in list_traces(episode)
    }
    for step, step_files in files_of_step.items():
        rollouts: list[ImportedRollout] = []
        trained_indices: list[int] = []
        # An episode may be in both files of its step: it is counted in one of them.
        counted_file = step_files[-1]
        for file in step_files:
            is_trained = file.parent.name == "effective"
            for where, episode in read_objects(file, (), "", context.notes.name_torn_file):
                if not is_episode(episode):
                    raise PoiseError(f"{where}: no 'traces': {KNOWN_VERSIONS}")
                if not is_training(episode):
                    context.notes.count(EVALUATION, "episode", file == counted_file)
                    continue
                if file == counted_file and not list_traces(episode):
                    context.notes.count(FAILED, "episode")
                if not is_trained and not _remove_traces(episode, trained_ids):
                    continue
                for _, rollout in episode_rollouts(episode, step, {}, context.notes, where):
                    if is_trained:
                        trained_indices.append(len(rollouts))
                    rollouts.append(rollout)
        if rollouts:
            schedule = Schedule((tuple(trained_indices),)) if trained_indices else None
            yield ImportedStep(step, tuple(rollouts), schedule)


def _remove_traces(episode: dict[str, Any], ids: set[str]) -> bool:
    """Take the traces with these ids out of an episode; whether others are left."""
    others = [trace for trace in list_traces(episode) if str(trace.get("id")) not in ids]
    if not is_trace(episode):
        episode["traces"] = others
    return bool(others)
