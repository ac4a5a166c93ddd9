"""Detect that training made a model worse: one line at the end of such a run.

    collapsed    success ended below COLLAPSE = 1/2 of where it began
    declined     success ended below where it began; if the 95 % intervals overlap, maybe by chance

Success is measured on held-out problems, sampled by the first of `evaluate.settings`. Without any,
the training prompts of the last quarter of the iterations are compared with those of the first;
since these are different prompts, only a collapse is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.config.evaluation_settings import group_by_setting
from counterpoise.run.heldout import HeldoutSuccess

COLLAPSE_RATIO = 0.5  # of the success at the beginning
QUARTER = 4
REMEDY = "lower update.lr, which was {lr:g}, or stop earlier"

LogRecords = Sequence[Mapping[str, Any]]


def describe_decline(evaluations: LogRecords, metrics: LogRecords, lr: float) -> str:
    """A warning from a run's evaluations.jsonl and metrics.jsonl; "" if it did not decline.

    Example: "held-out success ended below its start, 46.1 % [41.0, 51.2] -> 32.5 % [29.1, 36.4]"
    """
    settings = group_by_setting(evaluations)
    if not settings:
        return _describe_training(metrics, lr)
    lines = next(iter(settings.values()))
    start, end = HeldoutSuccess.from_record(lines[0]), HeldoutSuccess.from_record(lines[-1])
    if end.mean >= start.mean:
        return ""
    numbers = f"{start} -> {end}"
    if end.mean < COLLAPSE_RATIO * start.mean:
        return (
            f"the run collapsed: held-out success ended below half of its start, {numbers}; "
            + REMEDY.format(lr=lr)
        )
    overlap = end.high >= start.low
    advice = "the intervals overlap, so it may be chance" if overlap else REMEDY.format(lr=lr)
    return f"held-out success ended below its start, {numbers}; {advice}"


def _describe_training(metrics: LogRecords, lr: float) -> str:
    quarter = len(metrics) // QUARTER
    if not quarter:
        return ""
    success = [record["success"] for record in metrics]
    start, end = sum(success[:quarter]) / quarter, sum(success[-quarter:]) / quarter
    if end >= COLLAPSE_RATIO * start:
        return ""
    return (
        "the run collapsed: success on training prompts ended below half of its start, "
        f"{100 * start:.1f} % -> {100 * end:.1f} % (first and last quarter of the iterations); "
        + REMEDY.format(lr=lr)
    )
