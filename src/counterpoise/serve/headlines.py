"""What the curve of a held-out evaluation or a benchmark shows: its success, or its mean reward.

quantity                         "reward" where rewards are graded, else "success"
headline                         the number
headline_low, headline_high      its 95 % interval; None where it is not known
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.store.evaluation_records import is_graded_evaluation, reward_estimate

Record = dict[str, Any]


def add_headlines(records: Sequence[Record], *, is_graded: bool) -> list[Record]:
    """Lines of evaluations.jsonl, or of one benchmark, with the fields above.

    All lines get the same quantity: success if any of them lacks the mean reward, as lines of old
    versions do.

    Example:
        >>> scores = {"mean": 0.5, "low": 0.4, "high": 0.6}
        >>> add_headlines([scores], is_graded=False)[0]["headline_high"]
        0.6
    """
    has_rewards = all(record.get("reward") is not None for record in records)
    quantity = "reward" if is_graded and has_rewards else "success"
    return [record | _headline(record, quantity) for record in records]


def add_benchmark_headlines(records: Sequence[Record]) -> list[Record]:
    """Lines of benchmarks.jsonl with the fields above, in the same order."""
    names = dict.fromkeys(record.get("benchmark") for record in records)
    headlines: dict[int, Record] = {}
    for name in names:
        places = [k for k, record in enumerate(records) if record.get("benchmark") == name]
        lines = [records[k] for k in places]
        is_graded = any(map(is_graded_evaluation, lines))
        headlines |= zip(places, add_headlines(lines, is_graded=is_graded), strict=True)
    return [headlines[k] for k in range(len(records))]


def _headline(record: Mapping[str, Any], quantity: str) -> Record:
    numbers = [record.get(name) for name in ("mean", "low", "high")]
    if quantity == "reward":
        try:
            estimate = reward_estimate(record)
            numbers = [estimate.mean, estimate.low, estimate.high]
        except (LookupError, TypeError, ValueError, OverflowError):  # a line that lacks some
            numbers = [record.get("reward"), None, None]
    fields = ("headline", "headline_low", "headline_high")
    return {"quantity": quantity, **dict(zip(fields, map(_finite, numbers), strict=True))}


def _finite(number: Any) -> float | None:
    return number if isinstance(number, int | float) and math.isfinite(number) else None
