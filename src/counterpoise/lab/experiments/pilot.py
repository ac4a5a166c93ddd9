"""Choose a stable learning rate and one at the edge from a pilot, over all its arms.

The thresholds are in the experiment file before anything is trained.

    falls      a run whose last held-out success is more than `fall` below its best
    learns     a run whose best is at least `learn` above its start

    stable     the largest rate at which all runs learn and no run falls, there or at any smaller
               rate
    edge       the smallest larger rate at which all runs learn and some run falls

The edge is the regime of the paper's baseline, which learns at first and then loses what it
learned. If no rate falls, or no larger rate learns, there is no edge among the rates tried. A rate
without a held-out evaluation does not count as tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.lab.experiments.curves import Runs, learning_rates
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.failures import (
    PILOT_BIAS_NOTE,
    Failures,
    describe_pilot_failures,
)
from counterpoise.lab.experiments.measures import heldout_values
from counterpoise.lab.experiments.pilot_rates import arm_table


@dataclass(frozen=True, slots=True)
class RateOutcome:
    """How the runs of one rate went; the lists have one value per run, of every arm and seed."""

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
    """The outcome of a pilot: the rates tried, and the two chosen ones if there are any."""

    outcomes: list[RateOutcome]
    stable: float | None
    edge: float | None

    def __str__(self) -> str:
        stable = f"stable {self.stable:g}" if self.stable else "no rate is stable"
        edge = f"edge {self.edge:g}" if self.edge else "no edge among the rates tried"
        return f"{stable}, {edge}"


def choose_rates(runs: Runs, experiment: Experiment) -> RateChoice:
    """Apply the rule of the module docstring to all finished runs."""
    outcomes = [
        outcome
        for rate in learning_rates(runs)
        if (outcome := _rate_outcome(runs, rate, experiment)).runs
    ]
    stable = None
    for outcome in outcomes:
        # No rate above one at which a run falls is called stable.
        if outcome.falling_runs:
            break
        if outcome.learning_runs == outcome.runs:
            stable = outcome.rate
    edge = next(
        (
            outcome.rate
            for outcome in outcomes
            if outcome.falling_runs
            and outcome.learning_runs == outcome.runs
            and (stable is None or outcome.rate > stable)
        ),
        None,
    )
    return RateChoice(outcomes, stable, edge)


def _rate_outcome(runs: Runs, rate: float, experiment: Experiment) -> RateOutcome:
    success_curves = [
        heldout_values(success_curve)
        for run_key, success_curve in runs.items()
        if run_key.rate == rate
    ]
    success_curves = [success_curve for success_curve in success_curves if success_curve]
    fall, learn = experiment.options.fall, experiment.options.learn
    return RateOutcome(
        rate,
        [success_curve[0] for success_curve in success_curves],
        [max(success_curve) for success_curve in success_curves],
        [success_curve[-1] for success_curve in success_curves],
        falling_runs=sum(
            success_curve[-1] < max(success_curve) - fall for success_curve in success_curves
        ),
        learning_runs=sum(
            max(success_curve) >= success_curve[0] + learn for success_curve in success_curves
        ),
    )


def pilot_markdown(
    choice: RateChoice, runs: Runs, failures: Failures, experiment: Experiment
) -> str:
    """The content of results.md for a pilot; with several arms also a table of the arms."""
    several_arms = len(experiment.design.arms) > 1
    sections = [
        _summary_table(choice) if several_arms else _run_table(choice),
        [f"By the rule: {choice}."],
        arm_table(runs, failures, experiment) if several_arms else [],
    ]
    if failures:
        failure_lines = describe_pilot_failures(failures, runs)
        sections += [
            ["Failed:"],
            [f"- {failure_line}" for failure_line in failure_lines],
            [PILOT_BIAS_NOTE],
        ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _run_table(choice: RateChoice) -> list[str]:
    """A row per rate, whose cells have the success of every run."""
    table_lines = ["| rate | start | best | end | learn | fall |", "|---|---|---|---|---|---|"]
    for outcome in choice.outcomes:
        success_cells = (
            _percentages(outcome.start_success),
            _percentages(outcome.best_success),
            _percentages(outcome.final_success),
        )
        table_cells = (f"{outcome.rate:g}", *success_cells, *_count_cells(outcome))
        table_lines.append("| " + " | ".join(table_cells) + " |")
    return table_lines


def _summary_table(choice: RateChoice) -> list[str]:
    """A row per rate over all its runs, which are too many to be listed."""
    table_lines = [
        "The runs of all arms together, success in %:",
        "",
        "| rate | learn | fall | mean end | range of ends |",
        "|---|---|---|---|---|",
    ]
    for outcome in choice.outcomes:
        ends = [100 * success for success in outcome.final_success]
        end_cells = (f"{sum(ends) / len(ends):.1f}", f"{min(ends):.1f} to {max(ends):.1f}")
        table_cells = (f"{outcome.rate:g}", *_count_cells(outcome), *end_cells)
        table_lines.append("| " + " | ".join(table_cells) + " |")
    return table_lines


def _count_cells(outcome: RateOutcome) -> tuple[str, str]:
    return (
        f"{outcome.learning_runs} of {outcome.runs}",
        f"{outcome.falling_runs} of {outcome.runs}",
    )


def _percentages(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)
