"""How well the sums of pushes predict the real movement of held-out answers.

    predicted     sum of lr * m_t over the update's steps, m_t = beta m_{t-1} + (1 - beta) push_t;
                  beta = 0.9 under AdamW, 0 under SGD: a step moves the weights along its momentum,
                  so earlier rows still push
    correlation   Spearman's, over the answers of an update, of predicted and real change per
                  token; an update is all optimizer steps of an iteration
    explained     cos^2 of the two: the share of the real squared movement that the best multiple of
                  the prediction explains; 0 where their dot product is not positive

A newly sampled right or wrong answer takes over the momentum of the one that it replaces. Momentum
also decays with every optimizer step that was not measured.
Intervals are bootstraps over problems; a mean over updates uses the same draw of problems in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.report.probe_trace.read import ProbedIteration, ProbedRun
from counterpoise.report.run_data import RunData
from counterpoise.statistics.bootstrap import Interval, interval_from_draws, resampled_weights
from counterpoise.statistics.ranks import rank_correlations
from counterpoise.update.optimizer import BETA1

DRAWS = 400


@dataclass(frozen=True, slots=True)
class UpdateAgreement:
    """The update of one iteration."""

    iteration: int
    answers: int
    correlation: Interval
    plain_correlation: float  # of the update's own pushes, without momentum
    explained: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """All updates, and their mean."""

    updates: tuple[UpdateAgreement, ...]
    momentum: float  # beta
    correlation: Interval  # mean over updates
    plain_correlation: float  # the same without momentum
    explained: float  # median over updates


class Momentum:
    """The running average of the pushes on every answer, decayed like AdamW's first moment."""

    def __init__(self, run: RunData) -> None:
        self.beta = BETA1 if run.config.update.optimizer == "adamw" else 0.0
        # Iterations without a plan took no step: they leave the momentum as it is.
        self.steps_of_iteration = {plan["iteration"]: len(plan["steps"]) for plan in run.plans}
        self.values: dict[tuple[str, bool], float] = {}  # by problem and right or wrong
        self.last_iteration = 0

    def add(self, probed: ProbedIteration, pushes_Q: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add the pushes of one step; returns the momentum of every answer."""
        missed = sum(
            self.steps_of_iteration.get(iteration, 0)
            for iteration in range(self.last_iteration + 1, probed.iteration)
        )
        self.last_iteration = probed.iteration
        decay = self.beta ** (missed + 1)
        self.values = {name: decay * value for name, value in self.values.items()}
        names = [(answer["problem_id"], answer["reward"] > 0) for answer in probed.answers]
        for name, push in zip(names, pushes_Q.tolist(), strict=True):
            self.values[name] = self.values.get(name, 0.0) + (1 - self.beta) * push
        return np.array([self.values[name] for name in names])


class AgreementMeter:
    """Collects the agreement of every update while a run is read.

    Legend: D bootstrap draws (number 0 has every problem once, for the estimate itself),
    P problems, Q answers, S optimizer steps of an update, U updates.
    """

    def __init__(self, probed_run: ProbedRun) -> None:
        problem_ids = probed_run.problem_ids
        self.problem_number = {problem: number for number, problem in enumerate(problem_ids)}
        self.weights_DP = resampled_weights(problem_ids, DRAWS)
        self.momentum = Momentum(probed_run.run)
        self.updates: list[UpdateAgreement] = []
        self.draws: list[NDArray[np.float64]] = []

    def add(self, probed: ProbedIteration) -> None:
        problems = [answer["problem_id"] for answer in probed.answers]
        problem_Q = [self.problem_number[problem] for problem in problems]
        weights_DQ = self.weights_DP[:, problem_Q]
        pushes_SQ = [probed.pushes_Q(step) / probed.lengths_Q for step in probed.steps]
        # Every optimizer step moves the weights along the momentum that it has reached. Momentum is
        # of pushes without learning rates: like AdamW, a step applies its own rate to all of it.
        momentum_SQ = [self.momentum.add(probed, pushes_Q) for pushes_Q in pushes_SQ]
        predicted = probed.lr * np.sum(momentum_SQ, axis=0)
        moved = probed.moved_Q() / probed.lengths_Q
        correlation_D = rank_correlations(predicted, moved, weights_DQ)
        self.draws.append(correlation_D)
        plain_prediction = probed.lr * np.sum(pushes_SQ, axis=0)
        plain_correlation = rank_correlations(plain_prediction, moved, weights_DQ[:1])
        self.updates.append(
            UpdateAgreement(
                probed.iteration,
                len(problems),
                interval_from_draws(correlation_D, len(set(problems))),
                float(plain_correlation[0]),
                explained_share(predicted, moved),
            )
        )

    def result(self) -> Agreement:
        draws_UD = np.array(self.draws)
        is_defined = np.isfinite(draws_UD[:, 0])
        mean_D = draws_UD[is_defined].mean(axis=0) if is_defined.any() else np.full(2, np.nan)
        return Agreement(
            tuple(self.updates),
            self.momentum.beta,
            interval_from_draws(mean_D, len(self.problem_number)),
            _finite_mean([update.plain_correlation for update in self.updates]),
            float(np.median([update.explained for update in self.updates])),
        )


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


def _finite_mean(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")
