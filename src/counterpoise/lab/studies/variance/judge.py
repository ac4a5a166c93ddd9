"""Statistics of the variance study, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from counterpoise.microscope.variance import noise_factor, spread_from_prompts
from counterpoise.statistics.bootstrap import (
    Interval,
    Weights,
    bootstrap_interval,
    mean_interval,
    ratio_interval,
)
from counterpoise.statistics.finding import Number, Records

COMPOSERS = ("grouped", "shuffled", "token_balanced", "zigzag", "by_sign")
DIRECTIONS = ("shared", "token", "success")


class CutStatistics:
    """Weighted statistics over prompts, for one direction and one way of cutting groups."""

    def __init__(self, records: Records, direction: str, cut: str, dealt: bool = True) -> None:
        cut_records = [
            record
            for record in records
            if record["panel"] == "cut"
            and (record["direction"], record["cut"], record["dealt"]) == (direction, cut, dealt)
        ]
        self.prompts = [record["prompt"] for record in cut_records]
        self.G = cut_records[0]["rollouts"]
        self.measured, self.squares, self.sums, self.mean, self.within = (
            np.array([record[column] for record in cut_records])
            for column in ("measured", "squares", "sums", "mean", "within")
        )

    def per_square(self, weights: Weights) -> float:
        """Measured noise divided by sum A^2."""
        return float((weights * self.measured).sum() / (weights * self.squares).sum())

    def rho(self, weights: Weights) -> float:
        return spread_from_prompts(self.mean, self.within, self.G, weights).rho

    def factor(self, weights: Weights) -> float:
        """Measured noise divided by the noise of independent rollouts."""
        return (
            self.per_square(weights)
            / spread_from_prompts(self.mean, self.within, self.G, weights).s2
        )

    def predicted(self, weights: Weights) -> float:
        """The closed form, 1 + rho C."""
        squares, sums = float((weights * self.squares).sum()), float((weights * self.sums).sum())
        return noise_factor(squares, sums, self.rho(weights))

    def largest_prompt(self) -> float:
        """The largest share of one prompt in sum X^2: how heavy the tails are."""
        squares_P = self.within + self.G * np.square(self.mean)
        return float(squares_P.max() / squares_P.sum())

    def cross_term(self, weights: Weights) -> float:
        """C of eq. 14."""
        return float((weights * self.sums).sum() / (weights * self.squares).sum()) - 1

    def over_closed_form(self, weights: Weights) -> float:
        return self.factor(weights) / self.predicted(weights)

    def interval(self, statistic: Callable[[Weights], float]) -> Interval:
        return bootstrap_interval(self.prompts, statistic)


def rho_interval(records: Records, direction: str) -> Interval:
    statistics = CutStatistics(records, direction, "whole")
    return statistics.interval(statistics.rho)


def cross_term_interval(records: Records, composer: str) -> Interval:
    """C of eq. 14 for a composer, with the true advantages."""
    statistics = CutStatistics(records, "shared", composer, dealt=False)
    value, low, high = ratio_interval(statistics.prompts, statistics.sums, statistics.squares)
    return value - 1, low - 1, high - 1


def signal_numbers(records: Records) -> tuple[Number, ...]:
    numbers = []
    for direction in DIRECTIONS:
        filter_records = [
            record
            for record in records
            if record["panel"] == "filter" and record["direction"] == direction
        ]
        for column, label in (("joint", "joint"), ("right", "right only")):
            updates = np.array([record[column] for record in filter_records])
            # Scaled by the root mean square, so that directions can share one axis.
            root_mean_square = float(np.sqrt(np.mean(np.square(updates)))) or 1.0
            signal_interval = mean_interval(
                [record["prompt"] for record in filter_records], updates / root_mean_square
            )
            numbers.append(Number(f"signal over noise, {direction}, {label}", *signal_interval))
    return tuple(numbers)
