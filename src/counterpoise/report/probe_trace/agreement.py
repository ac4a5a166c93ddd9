"""How well the sums of pushes predict the real movement of held-out answers.

    correlation   Spearman's, over the answers of a step, of predicted and real change per token
    explained     cos^2 of the two: the share of the real squared movement that the best multiple of
                  the prediction explains; 0 where they point apart

Intervals are bootstraps over problems; a mean over steps uses the same draw of problems in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.report.probe_trace.read import ProbedIteration
from counterpoise.statistics.bootstrap import Interval, interval_from_draws, resampled_weights
from counterpoise.statistics.ranks import rank_correlations

DRAWS = 400


@dataclass(frozen=True, slots=True)
class StepAgreement:
    """One optimizer step."""

    iteration: int
    step: int
    answers: int
    correlation: Interval
    explained: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """All steps, and their mean."""

    steps: tuple[StepAgreement, ...]
    correlation: Interval  # mean over steps
    explained: float  # median over steps


class AgreementMeter:
    """Collects the agreement of every step while a run is read."""

    def __init__(self, problem_ids: Sequence[str]) -> None:
        self.problem_number = {problem: number for number, problem in enumerate(problem_ids)}
        self.weights_DP = resampled_weights(problem_ids, DRAWS)
        self.steps: list[StepAgreement] = []
        self.draws: list[NDArray[np.float64]] = []

    def add(self, probed: ProbedIteration) -> None:
        problems = [answer["problem_id"] for answer in probed.answers]
        problem_Q = [self.problem_number[problem] for problem in problems]
        for step in probed.steps:
            predicted = probed.predicted_Q(step) / probed.lengths_Q
            moved = probed.moved_Q(step) / probed.lengths_Q
            correlation_D = rank_correlations(predicted, moved, self.weights_DP[:, problem_Q])
            interval = interval_from_draws(correlation_D, len(set(problems)))
            self.draws.append(correlation_D)
            self.steps.append(
                StepAgreement(
                    probed.iteration,
                    step,
                    len(problems),
                    interval,
                    explained_share(predicted, moved),
                )
            )

    def result(self) -> Agreement:
        draws_SD = np.array(self.draws)
        is_defined = np.isfinite(draws_SD[:, 0])
        mean_D = draws_SD[is_defined].mean(axis=0) if is_defined.any() else np.full(2, np.nan)
        return Agreement(
            tuple(self.steps),
            interval_from_draws(mean_D, len(self.problem_number)),
            float(np.median([step.explained for step in self.steps])),
        )


def measure_agreement(
    iterations: Iterable[ProbedIteration], problem_ids: Sequence[str]
) -> Agreement:
    """The agreement of all steps of a run."""
    meter = AgreementMeter(problem_ids)
    for probed in iterations:
        meter.add(probed)
    return meter.result()


def explained_share(predicted: NDArray[np.float64], moved: NDArray[np.float64]) -> float:
    """
    Example:
        >>> explained_share(np.array([1.0, 0.0]), np.array([3.0, 4.0]))
        0.36
    """
    product = float(predicted @ moved)
    if product <= 0:
        return 0.0
    return product**2 / float((predicted @ predicted) * (moved @ moved))
