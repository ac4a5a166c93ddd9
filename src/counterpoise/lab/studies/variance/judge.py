"""The records of lab/studies/variance/measure.py as numbers with intervals over prompts."""

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
    """The records of one direction and cut, as weighted statistics of its prompts."""

    def __init__(self, records: Records, direction: str, cut: str, dealt: bool = True) -> None:
        mine = [
            r
            for r in records
            if r["panel"] == "cut"
            and (r["direction"], r["cut"], r["dealt"]) == (direction, cut, dealt)
        ]
        self.prompts = [r["prompt"] for r in mine]
        self.G = mine[0]["rollouts"]
        self.measured, self.squares, self.sums, self.mean, self.within = (
            np.array([r[name] for r in mine])
            for name in ("measured", "squares", "sums", "mean", "within")
        )

    def per_square(self, w: Weights) -> float:
        return float((w * self.measured).sum() / (w * self.squares).sum())

    def rho(self, w: Weights) -> float:
        return spread_from_prompts(self.mean, self.within, self.G, w).rho

    def factor(self, w: Weights) -> float:
        """Measured noise over that of independent rollouts."""
        return self.per_square(w) / spread_from_prompts(self.mean, self.within, self.G, w).s2

    def predicted(self, w: Weights) -> float:
        squares, sums = float((w * self.squares).sum()), float((w * self.sums).sum())
        return noise_factor(squares, sums, self.rho(w))

    def largest_prompt(self) -> float:
        """Its share of all sum X^2: how heavy the tails are."""
        squares_P = self.within + self.G * np.square(self.mean)
        return float(squares_P.max() / squares_P.sum())

    def cross_term(self, w: Weights) -> float:
        return float((w * self.sums).sum() / (w * self.squares).sum()) - 1

    def over_closed_form(self, w: Weights) -> float:
        return self.factor(w) / self.predicted(w)

    def interval(self, statistic: Callable[[Weights], float]) -> Interval:
        return bootstrap_interval(self.prompts, statistic)


def rho_interval(records: Records, direction: str) -> Interval:
    one = CutStatistics(records, direction, "whole")
    return one.interval(one.rho)


def cross_term_interval(records: Records, rule: str) -> Interval:
    """Dealing does not change it for the rules that ignore rewards; so with true advantages."""
    one = CutStatistics(records, "shared", rule, dealt=False)
    value, low, high = ratio_interval(one.prompts, one.sums, one.squares)
    return value - 1, low - 1, high - 1


def signal_numbers(records: Records) -> tuple[Number, ...]:
    numbers = []
    for direction in DIRECTIONS:
        mine = [r for r in records if r["panel"] == "filter" and r["direction"] == direction]
        for name, label in (("joint", "joint"), ("right", "right only")):
            x = np.array([r[name] for r in mine])
            size = float(np.sqrt(np.mean(np.square(x)))) or 1.0
            found = mean_interval([r["prompt"] for r in mine], x / size)
            numbers.append(Number(f"signal over noise, {direction}, {label}", *found))
    return tuple(numbers)
