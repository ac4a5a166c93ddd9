"""Two learning rates from a pilot of the baseline, by a rule that stands in its file beforehand.

    falls      a run whose last held-out success is more than `fall` below its best
    learns     a run whose best is at least `learn` above its start

    stable     the largest rate at which all runs learn and none falls, nor falls at a smaller one
    edge       the smallest larger rate at which some run falls, though all learn

The edge is where the paper's baseline lives: it learns at first and then loses what it learned.
Where no rate falls, or none of the larger ones learns, there is no edge among those tried. A rate
without a held-out evaluation is not tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.lab.experiments.curves import Runs, rates
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.failures import BIAS_OF_A_PILOT
from counterpoise.lab.experiments.measures import heldout


@dataclass(frozen=True, slots=True)
class Rate:
    """How the runs of one rate went; a value a seed."""

    rate: float
    start: list[float]
    best: list[float]
    end: list[float]
    falls: int
    learns: int

    @property
    def runs(self) -> int:
        return len(self.end)


@dataclass(frozen=True, slots=True)
class Choice:
    tried: list[Rate]
    stable: float | None
    edge: float | None

    def __str__(self) -> str:
        stable = f"stable {self.stable:g}" if self.stable else "no rate is stable"
        edge = f"edge {self.edge:g}" if self.edge else "no edge among the rates tried"
        return f"{stable}, {edge}"


def choose(runs: Runs, experiment: Experiment) -> Choice:
    tried = [one for rate in rates(runs) if (one := _rate(runs, rate, experiment)).runs]
    stable = None
    for one in tried:
        if one.falls:
            break
        if one.learns == one.runs:
            stable = one.rate
    edge = next(
        (
            one.rate
            for one in tried
            if one.falls and one.learns == one.runs and (stable is None or one.rate > stable)
        ),
        None,
    )
    return Choice(tried, stable, edge)


def _rate(runs: Runs, rate: float, experiment: Experiment) -> Rate:
    curves = [heldout(curve) for key, curve in runs.items() if key.rate == rate]
    curves = [curve for curve in curves if curve]
    fall, learn = experiment.options.fall, experiment.options.learn
    return Rate(
        rate,
        [curve[0] for curve in curves],
        [max(curve) for curve in curves],
        [curve[-1] for curve in curves],
        falls=sum(curve[-1] < max(curve) - fall for curve in curves),
        learns=sum(max(curve) >= curve[0] + learn for curve in curves),
    )


def markdown(choice: Choice, failed: Sequence[str] = ()) -> str:
    """results.md of a pilot; `failed`: what is to be said of runs that did."""
    lines = ["| rate | start | best | end | learn | fall |", "|---|---|---|---|---|---|"]
    for one in choice.tried:
        values = (_values(one.start), _values(one.best), _values(one.end))
        counts = (f"{one.learns} of {one.runs}", f"{one.falls} of {one.runs}")
        lines.append("| " + " | ".join((f"{one.rate:g}", *values, *counts)) + " |")
    lines += ["", f"By the rule: {choice}."]
    if failed:
        lines += ["", "Failed:", "", *(f"- {line}" for line in failed), "", BIAS_OF_A_PILOT]
    return "\n".join(lines) + "\n"


def _values(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)
