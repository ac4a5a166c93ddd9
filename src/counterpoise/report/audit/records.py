"""The records of an audit: a finding with its evidence, threshold, cost and remedy.

A finding is a function `(AuditRun) -> AuditFinding` and a row of FINDINGS in variants.py. The rows
stand in the order of a run's stages, from data to update: among findings of one level the earlier
stage comes first, because its faults explain those of later ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from counterpoise.report.not_measured import NO_UPDATE
from counterpoise.statistics.prompt_intervals import IntervalEstimate

Level = Literal["alarm", "warning", "note", "clear", "unsupported"]
# In the order of the page. "clear": measured, and within its threshold. "unsupported": the run
# lacks a file, or has too little to measure.
LEVELS: tuple[Level, ...] = ("alarm", "warning", "note", "clear", "unsupported")
NEEDS_UPDATE = f"an update: the run {NO_UPDATE}"
AUDIT_REPLAYED_RUN = "audit the folder whose rollouts were replayed"  # a remedy


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number of a finding, with its 95 % interval where it has one.

    Example:
        str(Measurement("split groups", 0.75, 0.61, 0.86, unit="share")) == "75.0 % [61.0, 86.0]"
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""  # "share" is shown in percent

    @classmethod
    def of(cls, name: str, estimate: IntervalEstimate, unit: str = "") -> Measurement:
        """A measurement with the interval of `estimate`; infinite bounds are left out."""
        low, high = (estimate.low, estimate.high) if estimate.is_bounded else (None, None)
        return cls(name, estimate.mean, low, high, unit)

    def __str__(self) -> str:
        if self.unit == "share":
            bounds = [f"{100 * bound:.1f}" for bound in self.bounds]
            return f"{100 * self.value:.1f} %" + (f" [{', '.join(bounds)}]" if bounds else "")
        bounds = [format_number(bound) for bound in self.bounds]
        text = format_number(self.value) + (f" [{', '.join(bounds)}]" if bounds else "")
        return f"{text} {self.unit}".rstrip()

    @property
    def bounds(self) -> tuple[float, ...]:
        return () if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True, slots=True)
class Example:
    """A rollout, or another place in the run, that shows the finding, and what to see there.

    Example:
        Example("7:word_problems/train/12", 3, "answered 11 for 22/2 and scored 0")
    """

    group: str  # or, with index None, another place: a prompt id, "iteration 3, step 2"
    index: int | None  # of the rollout in its group; None: not a single rollout
    text: str


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """What one check found, in numbers. `name` is filled in from the table of findings."""

    title: str
    level: Level
    verdict: str  # a sentence with the number that decided
    measurements: tuple[Measurement, ...] = ()
    threshold: str = ""  # when it becomes a warning, and when an alarm
    cost: str = ""
    remedy: str = ""
    examples: tuple[Example, ...] = ()
    missing: tuple[str, ...] = ()  # files or fields that the run lacks
    explains: tuple[str, ...] = ()  # findings that follow from this one
    consequence_of: str = ""  # the finding that explains this one
    name: str = ""


def unsupported(title: str, *missing: str, remedy: str = "") -> AuditFinding:
    """The finding of a check that the run's files cannot support, or that has nothing to measure.

    Example:
        unsupported("One sign is rare", "a step with signal").verdict == "needs a step with signal"
    """
    return AuditFinding(
        title, "unsupported", f"needs {' and '.join(missing)}", missing=missing, remedy=remedy
    )


def grade_above(value: float, warning: float, alarm: float = math.inf) -> Level:
    """The level of a value that is worse the larger it is; nan is clear.

    Example:
        >>> grade_above(0.3, 0.2, 0.5), grade_above(0.5, 0.2, 0.5), grade_above(0.1, 0.2)
        ('warning', 'alarm', 'clear')
    """
    if value >= alarm:
        return "alarm"
    return "warning" if value >= warning else "clear"


def worst_level(levels: Sequence[Level]) -> Level:
    """The most serious of several levels."""
    return min(levels, key=LEVELS.index, default="clear")


def percent(share: float, digits: int = 0) -> str:
    """A share in percent.

    Example:
        >>> percent(0.256), percent(0.256, 1)
        ('26 %', '25.6 %')
    """
    return f"{100 * share:.{digits}f} %"


def format_number(value: float) -> str:
    """A number in four significant digits; counts with thousands separators.

    Example:
        >>> format_number(12345.0), format_number(0.012345), format_number(2.5e-7)
        ('12,345', '0.01235', '2.5e-07')
    """
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All findings of a run, most serious first."""

    run: str  # name of the folder
    source: str  # the trainer
    iterations: int
    rollouts: int
    findings: tuple[AuditFinding, ...]
    notes: tuple[str, ...] = field(default=())

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)
