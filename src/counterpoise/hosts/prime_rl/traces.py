"""Import prime-rl's trace stream with its annotations.

    monitors/file/traces/stream.jsonl  or  stream/00000.jsonl.zst, stream/00001.jsonl, ...
    monitors/file/traces/annotations/PRODUCER.jsonl  or  annotations/PRODUCER/00000.jsonl, ...

A line of the stream is an episode, in the order of arrival. When the orchestrator ships a batch it
annotates the traces with info = {"effective": true, "ship": {"step", "time"}, "advantage"}, and the
trainer annotates them with its log-probabilities and entropies. The trainer takes one optimizer
step with all that was shipped for a step, so that is the plan. Traces that were never shipped are
stored with the step in which they arrived, and are in no plan. A run that was resumed ships a step
again: the last time counts.

Episodes of a step lie far apart in the stream, so they are first sorted into one scratch file for
each step. The last line of a run that is being trained may be unfinished and is left out.

Read in prime-rl at 048a6e23 (file/monitor.py, file/traces/update.py) and 551bfc39 (chunks.py).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
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
from counterpoise.hosts.importing.json_lines import is_step, parse_object, peek_object, read_lines
from counterpoise.hosts.importing.token_spans import select_numbers
from counterpoise.hosts.prime_rl.trace_rollouts import (
    ANNOTATION_VERSION,
    EVALUATION,
    FAILED,
    KNOWN_VERSIONS,
    arrival_step,
    episode_rollouts,
    is_episode,
    is_training,
    list_traces,
    read_object,
)

FOLDERS = (".", "traces", "monitors/file/traces")  # searched below the path that the user gives
REPLACED = -1  # trained before a resume, which trained its step again with other traces
# In annotations the id comes first: the long lists after it need not be parsed to sort a line.
TRACE_ID = re.compile(rb'^\{"version": ?1, ?"trace_id": ?"([0-9A-Za-z_-]+)"')
TRACE_ID_BYTES = 300


def find_files(path: Path) -> list[Path]:
    """The chunks of the stream, in order, of a run or of its folder of traces; or the one file."""
    if path.is_file():
        is_named = path.name == "stream.jsonl" or path.parent.name == "stream"
        return [path] if is_named or _holds_traces(path) else []
    if path.name == "stream" and (chunks := _chunks(path)):
        return chunks
    for folder in (path / name for name in FOLDERS):
        if files := _chunks(folder / "stream") or list(folder.glob("stream.jsonl")):
            return files
    return []


def _holds_traces(path: Path) -> bool:
    """Whether a file of any name holds traces; step_traces.py reads those in folders of a step."""
    in_step = any(parent.name.startswith("step_") for parent in path.absolute().parents)
    return path.suffix == ".jsonl" and not in_step and is_episode(peek_object(path))


def recognises_file(file: Path) -> bool:
    return bool(find_files(file))


def _chunks(folder: Path) -> list[Path]:
    """The numbered files of a stream. While a chunk is compressed it has two, with equal lines."""
    chunk_of_number: dict[str, Path] = {}
    for file in sorted(folder.glob("*.jsonl.zst")) + sorted(folder.glob("*.jsonl")):
        number = file.name.split(".")[0]
        if number.isdecimal():
            chunk_of_number[number] = file  # the plain file replaces the compressed one
    return [chunk_of_number[number] for number in sorted(chunk_of_number, key=int)]


def find_annotations(stream_file: Path) -> list[Path]:
    """The annotation files beside a stream, in the order of producers and chunks."""
    folder = (
        stream_file.parent.parent if stream_file.parent.name == "stream" else stream_file.parent
    )
    files: list[Path] = []
    for entry in sorted((folder / "annotations").glob("*")):
        if entry.is_dir():
            files += _chunks(entry)
        elif entry.suffix == ".jsonl" and not entry.name.endswith(".index.jsonl"):
            files.append(entry)
    return files


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    context.refuse_reward_option("writes one reward")
    annotation_files = find_annotations(files[0])
    context.show_progress("reading which traces were trained in which step")
    trained_step_of_trace = _read_trained_steps(annotation_files, context)
    if not trained_step_of_trace:
        context.notes.add(
            "no annotations say which traces were trained: steps are those of arrival"
        )
    step_of_trace = _sort_episodes(files, trained_step_of_trace, context)
    _sort_annotations(annotation_files, step_of_trace, context)
    for step in sorted(set(step_of_trace.values())):
        imported = _read_step(step, trained_step_of_trace, context)
        if imported is not None:
            yield imported


def _parse_annotation(line: bytes, where: str) -> dict[str, Any]:
    annotation = parse_object(line, where, ("trace_id",), "prime-rl")
    version = annotation.get("version", ANNOTATION_VERSION)
    if version != ANNOTATION_VERSION:
        raise PoiseError(f"{where}: an annotation of version {version!r}: {KNOWN_VERSIONS}")
    return annotation


def _read_trained_steps(files: Sequence[Path], context: ImportContext) -> dict[str, int]:
    """The step in which each trace was trained, or REPLACED; untrained traces are missing."""
    shipping: dict[str, tuple[int, float]] = {}  # trace -> step and time
    latest_time: dict[int, float] = {}
    for file in files:
        for where, line in read_lines(file, context.notes.name_torn_file):
            if b'"ship"' not in line:  # the trainer's annotations are long, and need not be parsed
                continue
            annotation = _parse_annotation(line, where)
            ship = read_object(annotation, "info").get("ship")
            if isinstance(ship, dict) and is_step(ship.get("step")):
                step, times = ship["step"], select_numbers([ship.get("time")], [0])
                time = times[0] if times else 0.0
                shipping[str(annotation["trace_id"])] = (step, time)
                latest_time[step] = max(latest_time.get(step, time), time)
    # All traces of a batch have the same time; an earlier batch of the step has been replaced.
    return {
        trace_id: step if time == latest_time[step] else REPLACED
        for trace_id, (step, time) in shipping.items()
    }


def _sort_episodes(
    files: Sequence[Path], trained_step_of_trace: dict[str, int], context: ImportContext
) -> dict[str, int]:
    """Write every episode to the scratch file of its step; returns the step of every trace."""
    step_of_trace: dict[str, int] = {}
    for file in files:
        context.show_progress(f"sorting {file.name} by step")
        for where, line in read_lines(file, context.notes.name_torn_file):
            episode = parse_object(line, where)
            if not is_episode(episode):
                present = ", ".join(sorted(episode)) or "none"
                raise PoiseError(
                    f"{where}: no 'traces' (fields: {present}): written by another version; "
                    f"{KNOWN_VERSIONS}"
                )
            traces = list_traces(episode)
            if not is_training(episode):
                context.notes.count(EVALUATION, "episode")
            elif not traces:
                context.notes.count(FAILED, "episode")
            else:
                # A trace that a resumed run trained again is left out.
                trained_steps = [
                    trained_step_of_trace[trace_id]
                    for trace in traces
                    if (trace_id := str(trace.get("id"))) in trained_step_of_trace
                ]
                if trained_steps and max(trained_steps) == REPLACED:
                    context.notes.count(
                        "left out: {} of steps that a resumed run trained again",
                        "trace",
                        len(traces),
                    )
                    continue
                step = max(trained_steps) if trained_steps else arrival_step(episode) or 0
                step_of_trace |= {str(trace.get("id")): step for trace in traces}
                _append(_scratch_file(context, step, "episodes"), where, line)
    return step_of_trace


def _sort_annotations(
    files: Sequence[Path], step_of_trace: dict[str, int], context: ImportContext
) -> None:
    for file in files:
        context.show_progress(f"sorting annotations/{file.name} by step")
        for where, line in read_lines(file, context.notes.name_torn_file):
            match = TRACE_ID.search(line, 0, TRACE_ID_BYTES)
            if match:
                trace_id = match[1].decode()
            else:
                trace_id = str(_parse_annotation(line, where)["trace_id"])
            step = step_of_trace.get(trace_id)
            if step is not None:
                _append(_scratch_file(context, step, "annotations"), where, line)


def _scratch_file(context: ImportContext, step: int, kind: str) -> Path:
    return context.scratch / f"{kind}_{step}.jsonl"


def _append(file: Path, where: str, line: bytes) -> None:
    """Add a line, after one with its location."""
    with file.open("ab") as lines:
        lines.write(json.dumps(where).encode() + b"\n" + line.rstrip(b"\n") + b"\n")


def _read_scratch(file: Path) -> Iterator[tuple[str, bytes]]:
    if file.exists():
        with file.open("rb") as lines:
            for where in lines:
                yield json.loads(where), next(lines)


def _read_step(
    step: int, trained_step_of_trace: dict[str, int], context: ImportContext
) -> ImportedStep | None:
    annotations_of_trace: dict[str, list[dict[str, Any]]] = defaultdict(list)
    annotations_file = _scratch_file(context, step, "annotations")
    for where, line in _read_scratch(annotations_file):
        annotation = _parse_annotation(line, where)
        annotations_of_trace[str(annotation["trace_id"])].append(annotation)
    rollouts: list[ImportedRollout] = []
    trained_indices: list[int] = []
    episodes_file = _scratch_file(context, step, "episodes")
    for where, line in _read_scratch(episodes_file):
        episode = parse_object(line, where)
        for trace in list_traces(episode):
            for annotation in annotations_of_trace.get(str(trace.get("id")), ()):
                trace["info"] = read_object(trace, "info") | read_object(annotation, "info")
        for trace_id, rollout in episode_rollouts(
            episode, step, annotations_of_trace, context.notes, where
        ):
            if trained_step_of_trace.get(trace_id) == step:
                trained_indices.append(len(rollouts))
            rollouts.append(rollout)
    episodes_file.unlink()
    annotations_file.unlink(missing_ok=True)
    if not rollouts:
        return None
    schedule = Schedule((tuple(trained_indices),)) if trained_indices else None
    return ImportedStep(step, tuple(rollouts), schedule)
