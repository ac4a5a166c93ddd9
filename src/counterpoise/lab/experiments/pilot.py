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

from counterpoise.lab.experiments.curves import Runs, learning_rates
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.failures import PILOT_BIAS_NOTE
from counterpoise.lab.experiments.measures import heldout_values


@dataclass(frozen=True, slots=True)
class RateOutcome:
    """How the runs of one rate went; a value a seed."""

    rate: float
    start_success: list[float]
    best_success: list[float]
    final_success: list[float]
    falling_runs: int
    learning_runs: int

    @property
    def runs(self) -> int:
        return len(self.final_success)


@dataclass(frozen=True, slots=True)
class RateChoice:
    outcomes: list[RateOutcome]
    stable: float | None
    edge: float | None

    def __str__(self) -> str:
        stable = f"stable {self.stable:g}" if self.stable else "no rate is stable"
        edge = f"edge {self.edge:g}" if self.edge else "no edge among the rates tried"
        return f"{stable}, {edge}"


def choose_rates(runs: Runs, experiment: Experiment) -> RateChoice:
    tried = [one for rate in learning_rates(runs) if (one := _rate(runs, rate, experiment)).runs]
    stable = None
    for one in tried:
        if one.falling_runs:
            break
        if one.learning_runs == one.runs:
            stable = one.rate
    edge = next(
        (
            one.rate
            for one in tried
            if one.falling_runs
            and one.learning_runs == one.runs
            and (stable is None or one.rate > stable)
        ),
        None,
    )
    return RateChoice(tried, stable, edge)


def _rate(runs: Runs, rate: float, experiment: Experiment) -> RateOutcome:
    curves = [heldout_values(curve) for key, curve in runs.items() if key.rate == rate]
    curves = [curve for curve in curves if curve]
    fall, learn = experiment.options.fall, experiment.options.learn
    return RateOutcome(
        rate,
        [curve[0] for curve in curves],
        [max(curve) for curve in curves],
        [curve[-1] for curve in curves],
        falling_runs=sum(curve[-1] < max(curve) - fall for curve in curves),
        learning_runs=sum(max(curve) >= curve[0] + learn for curve in curves),
    )


def pilot_markdown(choice: RateChoice, failed: Sequence[str] = ()) -> str:
    """results.md of a pilot; `failed`: what is to be said of runs that did."""
    lines = ["| rate | start | best | end | learn | fall |", "|---|---|---|---|---|---|"]
    for one in choice.outcomes:
        values = (_values(one.start_success), _values(one.best_success), _values(one.final_success))
        counts = (f"{one.learning_runs} of {one.runs}", f"{one.falling_runs} of {one.runs}")
        lines.append("| " + " | ".join((f"{one.rate:g}", *values, *counts)) + " |")
    lines += ["", f"By the rule: {choice}."]
    if failed:
        lines += ["", "Failed:", "", *(f"- {line}" for line in failed), "", PILOT_BIAS_NOTE]
    return "\n".join(lines) + "\n"


def _values(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)
