"""What a study is, and what it finds.

    measure(lab) -> records      needs a model; the only slow part; written to NAME.parquet
    judge(records) -> Finding    numbers with intervals and a verdict; written to NAME.json
    draw(records) -> figures     written to NAME.svg, NAME.png, NAME.html

`judge` and `draw` read the records alone, so a figure is redrawn without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from counterpoise.report.panel import Figure
    from counterpoise.study.lab import Lab

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


@dataclass(frozen=True, slots=True)
class Study:
    """Example: see study/proxy.py, the shortest one."""

    name: str
    title: str
    shows: str  # "Fig. 10"
    claim: str  # what the paper says, in our words
    rule: str  # when it counts as replicated, fixed before any run
    budgets: Mapping[str, Mapping[str, Any]]  # "quick" and "full": sizes, arms, seeds
    measure: Callable[[Lab], Records]
    judge: Callable[[Records], Finding]
    draw: Callable[[Records], tuple[Figure, ...]]
