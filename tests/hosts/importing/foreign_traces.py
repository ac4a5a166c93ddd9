"""Tiny traces in prime-rl's formats, made by hand.

Records follow Episode.to_record and Trace.to_record of verifiers at 00eee6c6 (v1/trace.py, graph.py
and episode.py), in the fields that an import could use. Files follow FileMonitor of
prime-rl: src/prime_rl/monitors/file/monitor.py at 048a6e23, traces/chunks.py at 551bfc39,
traces/update.py at 65a18584 and orchestrator/annotations.py at 96e0cf47 for the stream,
src/prime_rl/monitors/file.py at 559b4477 for files of steps.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from hosts.importing.foreign import write_lines

PROMPT = [5, 6]


def message_node(
    role: str, content: str, tokens: Sequence[int], parent: int | None, sampled: int = 0
) -> dict[str, Any]:
    """A message with its tokens, of which the last `sampled` are the model's."""
    mask = [False] * (len(tokens) - sampled) + [True] * sampled
    return {
        "parent": parent,
        "message": {"role": role, "content": content},
        "sampled": bool(sampled),
        "token_ids": list(tokens),
        "mask": mask,
        "logprobs": [-0.25] * sampled,
    }


def trace_record(trace_id: str, score: float, response: Sequence[int] = (11, 12)) -> dict[str, Any]:
    """A question and an answer; the answer's node starts with the template's token 9."""
    return {
        "version": 1,
        "id": trace_id,
        "verifiers": {"version": "0.2.2", "commit": None},
        "task": {"type": "Task", "data": {"idx": 0, "answer": "3"}, "key": "task-0"},
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "nodes": [
            message_node("user", "How many?", PROMPT, None),
            message_node("assistant", f"{trace_id} pens", [9, *response], 0, len(response)),
        ],
        "calls": [{"node": 1, "finish_reason": "stop"}],
        "rewards": {"correct": {"score": score, "weight": 1.0}},
        "metrics": {},
        "info": {"kind": "train", "arrival": {"step": 0, "time": 1.0}},
        "is_completed": True,
        "ok": True,
        "stop_condition": None,
    }


def episode_record(
    *traces: dict[str, Any], group: str = "g0", kind: str = "train", step: int = 0
) -> dict[str, Any]:
    return {
        "id": f"episode-{traces[0]['id'] if traces else 'none'}",
        "env": {"id": "gsm8k", "name": "maths"},
        "task": {"type": "Task", "data": {"idx": 0, "answer": "3"}, "key": "task-0"},
        "group": {"id": group},
        "run": {"type": "train", "id": "run", "work": {"type": kind, "step": step}},
        "ok": bool(traces),
        "errors": [],
        "traces": list(traces),
    }


def ship_update(trace_id: str, step: int, advantage: float, time: float = 10.0) -> dict[str, Any]:
    """What the orchestrator learns when it ships a batch (stamp_ship); the branch has 5 tokens."""
    return {
        "version": 1,
        "trace_id": trace_id,
        "info": {"effective": True, "ship": {"step": step, "time": time}, "advantage": advantage},
        "branches": [{"index": 0, "advantages": [0.0, 0.0, 0.0, advantage, advantage]}],
    }


def trainer_update(trace_id: str, branch_index: int = 0) -> dict[str, Any]:
    """What the trainer computed of a branch (AnnotationWriter); null outside of the loss mask."""
    streams = {
        "trainer_logprobs": [None, None, None, -0.3, -0.2],
        "entropies": [None, None, None, 0.7, 0.5],
        "is_masked": [None, None, None, False, False],
    }
    return {
        "version": 1,
        "trace_id": trace_id,
        "info": {},
        "branches": [{"index": branch_index, **streams}],
    }


def write_stream(
    folder: Path,
    episodes: Sequence[Any],
    orchestrator: Sequence[Any] = (),
    trainer: Sequence[Any] = (),
) -> Path:
    """One file for each stream, as of 31 August 2026, with indices that are not read."""
    traces = folder / "monitors" / "file" / "traces"
    write_lines(traces / "stream.jsonl", episodes)
    write_lines(traces / "stream.index.jsonl", [{"line": 1, "offset": 0}])
    for producer, updates in (("orchestrator", orchestrator), ("trainer", trainer)):
        if updates:
            write_lines(traces / "annotations" / f"{producer}.jsonl", updates)
            write_lines(traces / "annotations" / f"{producer}.index.jsonl", [{"trace_id": "x"}])
    return traces


def write_chunks(folder: Path, lines: Sequence[Any], sealed: int) -> None:
    """A stream of numbered chunks of one line each; the first ones are sealed with zstd, in frames
    and with the table of the seekable format at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(lines):
        content = json.dumps(line).encode() + b"\n"
        if number >= sealed:
            (folder / f"{number:05d}.jsonl").write_bytes(content)
            continue
        codec = pa.Codec("zstd")
        half = len(content) // 2
        frames = [codec.compress(data, asbytes=True) for data in (content[:half], content[half:])]
        table = struct.pack("<IIBI", 2, 9, 0, 0x8F92EAB1)
        skippable = struct.pack("<II", 0x184D2A5E, len(table)) + table
        (folder / f"{number:05d}.jsonl.zst").write_bytes(b"".join(frames) + skippable)
