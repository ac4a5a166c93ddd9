"""One run: curves, evaluations, timing by stage, alerts and options; and several runs at once."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from counterpoise.errors import format_count
from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.headlines import add_benchmark_headlines, add_headlines
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.vocabulary import read_run_vocabulary
from counterpoise.store.schema import EVALUATIONS, METRICS, PROBE_METRICS, TIME_METRICS

STAGES = tuple(
    name.removesuffix("_seconds")
    for name in (*TIME_METRICS, *PROBE_METRICS)
    if name.endswith("_seconds") and name != "iteration_seconds"
)
MOST_ALERTS = 200
# (column, what is counted, what happened to it, level); an alert where the value is above 0
COUNT_ALERTS = (
    ("skipped_steps", "optimizer step", "skipped: no signal, or not finite", "warning"),
    ("verifier_timeouts", "comparison", "of the verifier timed out", "warning"),
    ("verifier_crashes", "comparison", "killed a worker of the verifier", "error"),
    ("unscored", "rollout", "got no reward", "warning"),
)
# Limits of single iterations, for somebody who watches a run train. The audit judges a whole run
# and has its own, some of them relative (report/audit/thresholds.py).
TRUNCATED_ALERT = 0.5  # share of rollouts at the length limit
ENTROPY_ALERT = 0.1  # share of the mean entropy of the first iterations
MISMATCH_ALERT_NATS = 0.1  # mean |log-probability by the trainer - by the sampler|
FIRST_ITERATIONS = 5
MOST_TYPES = 200  # heaviest token types over the whole run
NO_NUMBERS = (None, None)
IMPORT_TERMS = {"groups": "prompts, each with its rollouts"}  # columns of imports alone


def run_view(reader: RunReader) -> dict[str, Any]:
    reader.follow_batches()
    reader.gaps.poll()
    with reader.lock:
        columns = {name: list(values) for name, values in reader.columns.items()}
        metrics: dict[str, Any] = {"iteration": list(reader.iterations), **columns}
        return {
            **reader.summary(),
            "config": reader.config,
            "metrics": metrics,
            "evaluations": add_headlines(reader.evaluations, is_graded=reader.is_graded),
            "benchmarks": add_benchmark_headlines(reader.benchmarks),
            "timing": {
                stage: columns[f"{stage}_seconds"]
                for stage in STAGES
                if f"{stage}_seconds" in columns
            },
            "alerts": alerts(reader),
            "terms": terms(metrics),
        }


def terms(metrics: dict[str, Any]) -> dict[str, str]:
    """What each column means, in plain words."""
    meanings = {}
    for column in metrics:
        meaning = METRICS.get(column) or IMPORT_TERMS.get(column)
        if meaning is None and column.startswith("reward_"):
            meaning = f"mean of the further reward {column.removeprefix('reward_')}"
        if meaning is None and column.startswith("logged_"):
            meaning = f"mean of {column.removeprefix('logged_')}, logged by the reward function"
        meanings[column] = meaning or column.replace("_", " ")
    return meanings | {f"evaluation_{name}": text for name, text in EVALUATIONS.items() if text}


def alerts(reader: RunReader) -> list[dict[str, Any]]:
    """What a person should look at, newest first; each with its number and its threshold."""
    entries: list[dict[str, Any]] = []
    if reader.problem:
        entries.append({"iteration": None, "text": reader.problem, "level": "error"})
    if reader.gaps.spans:
        entries.append(
            {"iteration": None, "text": "logs were lost; see gaps.jsonl", "level": "warning"}
        )
    numbered = []
    for column, noun, event, level in COUNT_ALERTS:
        for iteration, value in _values(reader, column):
            if value >= 1:
                text = f"{format_count(int(value), noun)} {event}"
                numbered.append((iteration, text, level))
    numbered += _threshold_alerts(reader)
    numbered.sort(key=lambda entry: -entry[0])
    entries += [
        {"iteration": iteration, "text": text, "level": level}
        for iteration, text, level in numbered[:MOST_ALERTS]
    ]
    if len(numbered) > MOST_ALERTS:
        left_out = len(numbered) - MOST_ALERTS
        entries.append(
            {"iteration": None, "text": f"{left_out} older alerts are left out", "level": "note"}
        )
    return entries


def _threshold_alerts(reader: RunReader) -> list[tuple[int, str, str]]:
    """Alerts where a curve crosses a threshold: at the crossing, not at every iteration after."""
    first_entropies = [value for _, value in _values(reader, "entropy")[:FIRST_ITERATIONS]]
    floor = ENTROPY_ALERT * sum(first_entropies) / max(1, len(first_entropies))
    checks = (
        (
            "truncated_share",
            lambda value: value > TRUNCATED_ALERT,
            f"{{:.0%}} of the rollouts were cut at the length limit (above {TRUNCATED_ALERT:.0%})",
        ),
        (
            "entropy",
            lambda value: value < floor,
            f"entropy {{:.3g}} nats: below {ENTROPY_ALERT:.0%} of its mean in the first "
            f"{FIRST_ITERATIONS} iterations",
        ),
        (
            "sampler_mismatch",
            lambda value: value > MISMATCH_ALERT_NATS,
            f"sampler and trainer differ by {{:.3g}} nats a token (above {MISMATCH_ALERT_NATS:g})",
        ),
    )
    entries = []
    for column, is_alarming, text in checks:
        was_alarming = False
        for iteration, value in _values(reader, column):
            if is_alarming(value) and not was_alarming:
                entries.append((iteration, text.format(value), "warning"))
            was_alarming = is_alarming(value)
    for column in ("loss", "grad_norm"):
        for iteration in reader.not_finite.get(column, ()):
            entries.append((iteration, f"{column} is not finite", "error"))
    return entries


def _values(reader: RunReader, column: str) -> list[tuple[int, float]]:
    """(iteration, value) where a column has a number."""
    values = reader.columns.get(column, ())
    return [
        (iteration, value)
        for iteration, value in zip(reader.iterations, values, strict=False)
        if not math.isnan(value)
    ]


def overlay_view(readers: Sequence[RunReader]) -> dict[str, Any]:
    """Curves of several runs; columns that at least one of them has."""
    runs = []
    for reader in readers:
        with reader.lock:
            runs.append(
                {
                    **reader.summary(),
                    "metrics": {
                        "iteration": list(reader.iterations),
                        **{name: list(values) for name, values in reader.columns.items()},
                    },
                    "evaluations": add_headlines(reader.evaluations, is_graded=reader.is_graded),
                    "config": reader.config,
                }
            )
    columns = dict.fromkeys(name for run in runs for name in run["metrics"])
    return {"runs": runs, "columns": list(columns), "terms": terms(columns)}


def types_view(reader: RunReader) -> dict[str, Any]:
    """Token types that receive most of the push, over iterations, and how much of it cancels."""
    vocabulary = read_run_vocabulary(reader)
    iterations, entries_over_time = [], []
    for iteration in list(reader.metrics.spans):
        # Most lines have no such list, and a line with it is long: look before parsing.
        line = reader.metrics.read_line(iteration)
        if b'"cancellation_types": [[' not in line:
            continue
        try:
            entries = json.loads(line)["cancellation_types"]
            entries_over_time.append(
                {
                    int(token): (float(cancelled), float(share))
                    for token, cancelled, share in entries
                }
            )
        except (ValueError, TypeError, LookupError, RecursionError):
            continue
        iterations.append(iteration)
    if not iterations:
        raise NotFoundError(
            f"{reader.name} has no token types: the monitor was off (monitor.every = 1 measures "
            "every update), or the run is another trainer's"
        )
    total_share: Counter[int] = Counter()
    for shares in entries_over_time:
        total_share.update({token: share for token, (_, share) in shares.items()})
    return {
        "iterations": iterations,
        "types": [
            {
                "token": token,
                "text": vocabulary[token],
                "cancellation": [shares.get(token, NO_NUMBERS)[0] for shares in entries_over_time],
                "share": [shares.get(token, NO_NUMBERS)[1] for shares in entries_over_time],
            }
            for token, _ in total_share.most_common(MOST_TYPES)
        ],
        "terms": {
            "cancellation": "1 - net push / gross push on tokens of this type",
            "share": "share of all push that tokens of this type receive",
        },
    }
