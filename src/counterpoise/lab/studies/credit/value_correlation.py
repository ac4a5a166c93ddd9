"""Which credit goes to valuable tokens? Rank correlations with the Monte Carlo value.

    credit    rho(A w, value)            what the rollout's advantage and the weights say together
    right     rho(w, value | A > 0)      among tokens of right rollouts, where A says nothing
    wrong     rho(-w, value | A < 0)     of wrong ones: blame should go to tokens of low value
    gain      credit less that of A alone (`uniform`), the same tokens in every draw
    moved     rho(delta log p, value)    what one iteration did to the token, whatever its credit
    lift      moved less that of `uniform`
    hidden    moved less rho(A w, value) of the same tokens: what the update knew beyond its credit

Tokens: open ones (p <= 0.95) of the first rollout of every group with signal, each with the number
of tokens it stands for. Intervals are bootstraps over prompts, at 95 %; those of gain and lift at a
level that holds for all arms together (Bonferroni). None where w is the same for all tokens.

A value of few continuations is noisy, which lowers every correlation alike: no credit could reach
more than `ceiling`, the square root of the reliability that two halves of the continuations show.

    reliability = 2 rho(even, odd) / (1 + rho(even, odd))                  (Spearman, Brown)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.lab.studies.credit.arms import BASELINE, EXPLICIT_KINDS, WEIGHTED_KINDS
from counterpoise.statistics.bootstrap import (
    Interval,
    interval_from_draws,
    ratio_interval,
    resampled_weights,
)
from counterpoise.statistics.finding import Record, Records
from counterpoise.statistics.ranks import (
    DrawMatrix,
    rank_correlations,
    weighted_correlations,
    weighted_ranks,
)
from counterpoise.statistics.student import bonferroni_level

LEVEL = 0.95
DRAWS = 2000
Mask = NDArray[np.bool_]  # [N]


@dataclass(frozen=True, slots=True)
class ArmCorrelations:
    """One arm. Example: ArmCorrelations("gtpo", "weights", False, (0.41, 0.34, 0.47), None, ...)"""

    arm: str
    kind: str
    all_ones: bool  # its weights are 1 everywhere here
    credit: Interval | None
    right: Interval | None
    wrong: Interval | None
    gain: Interval | None
    moved: Interval | None
    lift: Interval | None
    hidden: Interval | None
    residual: Interval | None  # on shared prefixes
    group: Interval | None  # of whole groups
    cancellation: Interval | None
    overhead: float  # seconds over those of an iteration with uniform weights, sampling included

    @property
    def counts_for_verdict(self) -> bool:
        """Whether the verdict counts it: token weights at their own settings."""
        return self.kind == "weights" and not self.all_ones


class ComparedTokens:
    """The tokens all arms are compared by, resampled once for all."""

    def __init__(self, records: Records) -> None:
        first = _records_of(records, BASELINE, "token")
        self.prompts = [r["prompt"] for r in first]
        weight_N = np.array([r["weight"] for r in first])
        self.w_DN: DrawMatrix = resampled_weights(self.prompts, DRAWS) * weight_N
        self.value_N = np.array([r["value"] for r in first])
        self.halves = [[r[name] for r in first] for name in ("even", "odd")]
        positive_N = np.array([r["sign"] == "positive" for r in first])
        self.subsets: dict[str, Mask] = {
            "all": np.ones_like(positive_N),
            "right": positive_N,
            "wrong": ~positive_N,
            "moving": np.array([r["delta"] is not None for r in first]),
        }
        self._ranks_by_subset: dict[str, tuple[DrawMatrix, DrawMatrix]] = {}

    def draw_correlations(self, part: str, x_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlations of x with value among a part of the tokens, one a draw."""
        in_N = self.subsets[part]
        if not in_N.any():
            return np.full(len(self.w_DN), np.nan)
        w_DN, of_value = self._value_ranks(part)
        return weighted_correlations(weighted_ranks(x_N[in_N], w_DN), of_value, w_DN)

    def _value_ranks(self, part: str) -> tuple[DrawMatrix, DrawMatrix]:
        """Weights of the part's tokens and the ranks of their values, once for all arms."""
        if part not in self._ranks_by_subset:
            in_N = self.subsets[part]
            w_DN = self.w_DN[:, in_N]
            self._ranks_by_subset[part] = w_DN, weighted_ranks(self.value_N[in_N], w_DN)
        return self._ranks_by_subset[part]

    def interval(self, drawn_D: NDArray[np.float64], level: float = LEVEL) -> Interval | None:
        """None where there is nothing to correlate."""
        if not math.isfinite(drawn_D[0]):
            return None
        return interval_from_draws(drawn_D, len(set(self.prompts)), level)

    @property
    def ceiling(self) -> float:
        even, odd = self.halves
        rho = float(rank_correlations(even, odd, self.w_DN[:1])[0])
        return math.sqrt(max(0.0, 2 * rho / (1 + rho))) if rho > -1 else 0.0


def correlate_arms(records: Records, tokens: ComparedTokens) -> list[ArmCorrelations]:
    """Every arm that was iterated, in the order of the records."""
    costs = {r["arm"]: r for r in records if r["panel"] == "cost"}
    base = costs[BASELINE]
    iteration = base["seconds"] + base["sampling"]
    others = len(costs) - 1
    explicit = sum(r["kind"] in EXPLICIT_KINDS and not r["ones"] for r in costs.values())
    level_gain, level_lift = (bonferroni_level(LEVEL, max(1, n)) for n in (explicit, others))
    plain, still = (
        tokens.draw_correlations(part, _column(records, BASELINE, column))
        for part, column in (("all", "credit"), ("moving", "delta"))
    )
    found = []
    for arm, cost in costs.items():
        w_N, credit_N, delta_N = (_column(records, arm, c) for c in ("w", "credit", "delta"))
        moved = tokens.draw_correlations("moving", delta_N)
        credit = (
            tokens.draw_correlations("all", credit_N) if cost["kind"] in EXPLICIT_KINDS else None
        )
        weighed = cost["kind"] in WEIGHTED_KINDS and not cost["ones"]
        found.append(
            ArmCorrelations(
                arm,
                cost["kind"],
                cost["ones"],
                None if credit is None else tokens.interval(credit),
                tokens.interval(tokens.draw_correlations("right", w_N)) if weighed else None,
                tokens.interval(tokens.draw_correlations("wrong", -w_N)) if weighed else None,
                None
                if credit is None or cost["ones"]
                else tokens.interval(credit - plain, level_gain),
                tokens.interval(moved),
                tokens.interval(moved - still, level_lift) if arm != BASELINE else None,
                tokens.interval(moved - tokens.draw_correlations("moving", credit_N)),
                *_pull_ratios(_records_of(records, arm, "prompt")),
                (cost["seconds"] - base["seconds"]) / iteration,
            )
        )
    return found


def _pull_ratios(
    prompts: Sequence[Record],
) -> tuple[Interval | None, Interval | None, Interval | None]:
    """Residual on shared prefixes, that of groups, cancellation index: each over prompts."""
    names = [r["prompt"] for r in prompts]

    def share(parts: Sequence[float], whole: str) -> Interval | None:
        wholes = [r[whole] for r in prompts]
        return ratio_interval(names, parts, wholes) if sum(wholes) else None

    return (
        share([r["left"] for r in prompts], "gross"),
        share([r["rest"] for r in prompts], "whole"),
        share([r["pushed"] - r["net"] for r in prompts], "pushed"),
    )


def _records_of(records: Records, arm: str, panel: str) -> list[Record]:
    return [r for r in records if r["panel"] == panel and r["arm"] == arm]


def _column(records: Records, arm: str, column: str) -> NDArray[np.float64]:
    return np.array([r[column] for r in _records_of(records, arm, "token")], dtype=np.float64)
