"""Rank correlations of token credit with the Monte Carlo value of tokens.

    credit    rho(A w, value)            advantage of the rollout and weights of its tokens together
    right     rho(w, value | A > 0)      among tokens of right rollouts, where A has one sign
    wrong     rho(-w, value | A < 0)     among wrong ones: blame should go to tokens of low value
    gain      credit minus that of A alone (`uniform`), on the same tokens in every draw
    moved     rho(delta log p, value)    the displacement in one iteration, whatever the credit
    lift      moved minus that of `uniform`
    hidden    moved minus rho(A w, value) of the same tokens: what the update does beyond its credit

The tokens are open (p <= 0.95), from the first rollout of every group with signal, each weighted by
the number of tokens it represents. Intervals are 95 % bootstraps over prompts; those of gain and
lift hold for all arms together (Bonferroni). A correlation is None where w is the same for all
tokens.

Values from few continuations are noisy, which lowers every correlation alike: no credit could reach
more than `ceiling`, the square root of the reliability estimated from two halves of the
continuations.

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
    all_ones: bool  # its weights are 1 everywhere on this batch
    credit: Interval | None
    right: Interval | None
    wrong: Interval | None
    gain: Interval | None
    moved: Interval | None
    lift: Interval | None
    hidden: Interval | None
    residual: Interval | None  # exchangeability residual, on shared prefixes
    group: Interval | None  # residual of whole groups
    cancellation: Interval | None
    overhead: float  # extra seconds, as a share of an iteration with uniform weights and sampling

    @property
    def counts_for_verdict(self) -> bool:
        """True for arms that count in the verdict: token weights at their default settings."""
        return self.kind == "weights" and not self.all_ones


class ComparedTokens:
    """The tokens by which all arms are compared, resampled once for all arms."""

    def __init__(self, records: Records) -> None:
        baseline_tokens = _records_of(records, BASELINE, "token")
        self.prompts = [record["prompt"] for record in baseline_tokens]
        weight_N = np.array([record["weight"] for record in baseline_tokens])
        # Row 0 is the data itself, the others are bootstrap draws of prompts.
        self.w_DN: DrawMatrix = resampled_weights(self.prompts, DRAWS) * weight_N
        self.value_N = np.array([record["value"] for record in baseline_tokens])
        self.halves = [[record[half] for record in baseline_tokens] for half in ("even", "odd")]
        positive_N = np.array([record["sign"] == "positive" for record in baseline_tokens])
        self.subsets: dict[str, Mask] = {
            "all": np.ones_like(positive_N),
            "right": positive_N,
            "wrong": ~positive_N,
            "moving": np.array([record["delta"] is not None for record in baseline_tokens]),
        }
        self._ranks_by_subset: dict[str, tuple[DrawMatrix, DrawMatrix]] = {}

    def draw_correlations(self, subset: str, x_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlations of x with value among a subset of the tokens, one per draw."""
        member_N = self.subsets[subset]
        if not member_N.any():
            return np.full(len(self.w_DN), np.nan)
        w_DN, value_ranks_DN = self._value_ranks(subset)
        return weighted_correlations(weighted_ranks(x_N[member_N], w_DN), value_ranks_DN, w_DN)

    def _value_ranks(self, subset: str) -> tuple[DrawMatrix, DrawMatrix]:
        """(weights, ranks of values) of a subset's tokens, computed once for all arms."""
        if subset not in self._ranks_by_subset:
            member_N = self.subsets[subset]
            w_DN = self.w_DN.compress(member_N, axis=1)  # keeps a draw in adjacent memory
            self._ranks_by_subset[subset] = w_DN, weighted_ranks(self.value_N[member_N], w_DN)
        return self._ranks_by_subset[subset]

    def interval(self, correlation_D: NDArray[np.float64], level: float = LEVEL) -> Interval | None:
        """The interval of a correlation; None where it is not defined."""
        if not math.isfinite(correlation_D[0]):
            return None
        return interval_from_draws(correlation_D, len(set(self.prompts)), level)

    @property
    def ceiling(self) -> float:
        # Spearman-Brown: the reliability of the whole from the correlation of its halves.
        even, odd = self.halves
        rho = float(rank_correlations(even, odd, self.w_DN[:1])[0])
        return math.sqrt(max(0.0, 2 * rho / (1 + rho))) if rho > -1 else 0.0


def correlate_arms(records: Records, tokens: ComparedTokens) -> list[ArmCorrelations]:
    """The correlations of every measured arm, in the order of the records."""
    costs = {record["arm"]: record for record in records if record["panel"] == "cost"}
    baseline_cost = costs[BASELINE]
    baseline_seconds = baseline_cost["seconds"] + baseline_cost["sampling"]
    other_arm_count = len(costs) - 1
    explicit_arm_count = sum(
        record["kind"] in EXPLICIT_KINDS and not record["ones"] for record in costs.values()
    )
    # Gains exist for arms with explicit credit only, lifts for all arms but the baseline.
    level_gain, level_lift = (
        bonferroni_level(LEVEL, max(1, comparisons))
        for comparisons in (explicit_arm_count, other_arm_count)
    )
    token_records = {arm: _records_of(records, arm, "token") for arm in costs}
    baseline_credit_D, baseline_movement_D = (
        tokens.draw_correlations(subset, _column(token_records[BASELINE], column))
        for subset, column in (("all", "credit"), ("moving", "delta"))
    )
    results = []
    for arm, cost in costs.items():
        w_N, credit_N, delta_N = (
            _column(token_records[arm], column) for column in ("w", "credit", "delta")
        )
        movement_D = tokens.draw_correlations("moving", delta_N)
        credit_D = (
            tokens.draw_correlations("all", credit_N) if cost["kind"] in EXPLICIT_KINDS else None
        )
        right = wrong = gain = lift = None
        if cost["kind"] in WEIGHTED_KINDS and not cost["ones"]:
            right = tokens.interval(tokens.draw_correlations("right", w_N))
            wrong = tokens.interval(tokens.draw_correlations("wrong", -w_N))
        if credit_D is not None and not cost["ones"]:
            gain = tokens.interval(credit_D - baseline_credit_D, level_gain)
        if arm != BASELINE:
            lift = tokens.interval(movement_D - baseline_movement_D, level_lift)
        residual, group, cancellation = _pull_ratios(_records_of(records, arm, "prompt"))
        results.append(
            ArmCorrelations(
                arm=arm,
                kind=cost["kind"],
                all_ones=cost["ones"],
                credit=None if credit_D is None else tokens.interval(credit_D),
                right=right,
                wrong=wrong,
                gain=gain,
                moved=tokens.interval(movement_D),
                lift=lift,
                hidden=tokens.interval(movement_D - tokens.draw_correlations("moving", credit_N)),
                residual=residual,
                group=group,
                cancellation=cancellation,
                overhead=(cost["seconds"] - baseline_cost["seconds"]) / baseline_seconds,
            )
        )
    return results


def _pull_ratios(
    prompts: Sequence[Record],
) -> tuple[Interval | None, Interval | None, Interval | None]:
    """(exchangeability residual, residual of whole groups, cancellation index), over prompts."""
    prompt_names = [record["prompt"] for record in prompts]

    def share(numerators: Sequence[float], denominator_column: str) -> Interval | None:
        denominators = [record[denominator_column] for record in prompts]
        return ratio_interval(prompt_names, numerators, denominators) if sum(denominators) else None

    return (
        share([record["left"] for record in prompts], "gross"),
        share([record["rest"] for record in prompts], "whole"),
        share([record["pushed"] - record["net"] for record in prompts], "pushed"),
    )


def _records_of(records: Records, arm: str, panel: str) -> list[Record]:
    return [record for record in records if record["panel"] == panel and record["arm"] == arm]


def _column(records: Sequence[Record], column: str) -> NDArray[np.float64]:
    return np.array([record[column] for record in records], dtype=np.float64)
