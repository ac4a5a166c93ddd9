"""What a measurement leaves: records, numbers with intervals, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Record = dict[str, Any]  # plain values; a key missing from a record is None in the parquet file
Records = Sequence[Record]
Verdict = Literal["replicated", "not replicated", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a figure, beside the paper's.

    Example:
        Number("boosted, positive rollouts", 0.46, 0.44, 0.49, paper=0.45, unit="share")
    """

    name: str
    value: float
    low: float | None = None  # 95 %, by bootstrap over prompts, or over seeds where arms compare
    high: float | None = None
    paper: float | None = None  # None: the paper prints no number
    unit: str = ""  # "share" is shown in percent


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    because: str  # one or two sentences with the numbers that decided
    numbers: tuple[Number, ...]
    notes: tuple[str, ...] = ()  # what a reader must know besides: limits, surprises
