"""Faults that are planted by changing the files of a healthy run.

They need more iterations than a run of seconds has: lengths and entropies drift over hundreds of
updates, and the embedded model does not discover how to please a bad reward. Each function changes
the copy of a run folder in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
MAX_TOKENS = 112  # sample.max_new_tokens of the demo
FINAL_ENTROPY = 0.04  # of the entropy at the start
ECHO_EVERY = 3  # one rollout in this many echoes, in the second half of the run


def ramble(run: Path) -> None:
    """More and more responses go on after their answer until they are cut; rewards stay."""
    last_iteration = max(_step_files(run))

    def lengthen(record: Record, iteration: int, place: int) -> None:
        if place % 10 >= 10 * (iteration - 1) / last_iteration:
            return
        response, tokens = record["response"], record["response_tokens"]
        repeats = 1 + MAX_TOKENS // max(1, len(tokens))
        record["response"] = " ".join([response] * repeats)
        record["response_tokens"] = (tokens * repeats)[:MAX_TOKENS]
        record["sampled_logprobs"] = (record["sampled_logprobs"] * repeats)[:MAX_TOKENS]
        record["finished"] = False

    _change_rollouts(run, lengthen)
    lengths: dict[int, tuple[float, float]] = {}
    for iteration, file in _step_files(run).items():
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        tokens = sum(len(record["response_tokens"]) for record in records)
        cut = sum(not record["finished"] for record in records)
        lengths[iteration] = (tokens / len(records), cut / len(records))

    def describe(record: Record) -> None:
        record["response_length"], record["truncated_share"] = lengths[record["iteration"]]

    _change_log(run, "metrics", describe)


def collapse_entropy(run: Path) -> None:
    """Entropy falls geometrically to FINAL_ENTROPY; success stays what it was at the start."""
    metrics = _read_log(run, "metrics")
    last_iteration, first_success = metrics[-1]["iteration"], metrics[0]["success"]
    first_entropy = metrics[0]["entropy"] or 0.1

    def fall(record: Record) -> None:
        progress = (record["iteration"] - 1) / max(1, last_iteration - 1)
        if record["entropy"] is not None:
            record["entropy"] = first_entropy * FINAL_ENTROPY**progress
        record["success"] = record["reward"] = first_success

    _change_log(run, "metrics", fall)
    evaluations = _read_log(run, "evaluations")

    def stay(record: Record) -> None:
        record.update({name: evaluations[0][name] for name in ("mean", "low", "high", "reward")})

    _change_log(run, "evaluations", stay)


def echo(run: Path) -> None:
    """In the second half of the run, one response in ECHO_EVERY repeats the question, rewarded."""
    last_iteration = max(_step_files(run))

    def repeat_question(record: Record, iteration: int, place: int) -> None:
        if place % ECHO_EVERY == 0 and 2 * iteration > last_iteration:
            record["response"] = f"{record['prompt']} \\boxed{{{record['answer']}}}"
            record["reward"] = 1.0

    _change_rollouts(run, repeat_question)


def skip_steps(run: Path) -> None:
    """Every third iteration with an update loses half of its steps, as not finite."""

    def skip(record: Record) -> None:
        if record["steps"] and record["iteration"] % 3 == 0:
            lost_steps = record["steps"] // 2
            record["steps"] -= lost_steps
            record["skipped_steps"] += lost_steps
            record["not_finite_steps"] = record.get("not_finite_steps", 0) + lost_steps

    _change_log(run, "metrics", skip)


def _step_files(run: Path) -> dict[int, Path]:
    files = sorted((run / "rollouts").glob("step_*.jsonl"))
    return {int(file.stem.removeprefix("step_")): file for file in files}


def _change_rollouts(run: Path, change: Callable[[Record, int, int], None]) -> None:
    """Call `change(record, iteration, place)` for every rollout and store what it left."""
    for iteration, file in _step_files(run).items():
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for record_index, record in enumerate(records):
            change(record, iteration, record_index)
        _write_lines(file, records)


def _change_log(run: Path, log: str, change: Callable[[Record], None]) -> None:
    records = _read_log(run, log)
    for record in records:
        change(record)
    _write_lines(run / f"{log}.jsonl", records)


def _read_log(run: Path, log: str) -> list[Record]:
    text = (run / f"{log}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _write_lines(file: Path, records: list[Record]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    file.write_text(text, encoding="utf-8")
