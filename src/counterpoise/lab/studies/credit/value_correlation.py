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
lift hold for all arms together (Bonferroni), with as many draws as that level needs
(`bootstrap.draws_for_level`). A correlation is None where w is the same for all tokens.

Values from few continuations are noisy, which lowers every correlation alike: no credit could reach
more than `ceiling`, the square root of the reliability estimated from two halves of the
continuations.

    reliability = 2 rho(even, odd) / (1 + rho(even, odd))                  (Spearman, Brown)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.lab.studies.credit.arms import BASELINE, EXPLICIT_KINDS, WEIGHTED_KINDS
from counterpoise.statistics.bootstrap import (
    Interval,
    draws_for_level,
    interval_from_draws,
    ratio_interval,
    weight_chunks,
)
from counterpoise.statistics.finding import Record, Records
from counterpoise.statistics.ranks import (
    correlations_with,
    rank_correlations,
)
from counterpoise.statistics.student import bonferroni_level

LEVEL = 0.95
DRAWS = 2000  # at 95 %; higher levels take more
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
    """The tokens by which all arms are compared; all arms have the same draws of prompts."""

    def __init__(self, records: Records) -> None:
        baseline_tokens = _records_of(records, BASELINE, "token")
        self.prompts = [record["prompt"] for record in baseline_tokens]
        self.weight_N = np.array([record["weight"] for record in baseline_tokens])
        self.value_N = np.array([record["value"] for record in baseline_tokens])
        self.halves = [[record[half] for record in baseline_tokens] for half in ("even", "odd")]
        positive_N = np.array([record["sign"] == "positive" for record in baseline_tokens])
        self.subsets: dict[str, Mask] = {
            "all": np.ones_like(positive_N),
            "right": positive_N,
            "wrong": ~positive_N,
            "moving": np.array([record["delta"] is not None for record in baseline_tokens]),
        }

    def draw_correlations(
        self, subset: str, columns: Mapping[str, NDArray[np.float64]], level: float = LEVEL
    ) -> dict[str, NDArray[np.float64]]:
        """Correlations of each column with value among a subset of the tokens: [1 + draws].

        The first entry is the correlation of the data itself, the others are those of bootstrap
        draws of prompts, as many as an interval at `level` needs.
        """
        member_N = self.subsets[subset]
        draws = self._draws(subset, level)
        if not member_N.any():
            return {name: np.full(1 + draws, np.nan) for name in columns}
        weight_N = self.weight_N[member_N]
        return correlations_with(
            self.value_N[member_N],
            {name: x_N[member_N] for name, x_N in columns.items()},
            (
                prompt_weights_DN.compress(member_N, axis=1) * weight_N
                for prompt_weights_DN in weight_chunks(self.prompts, draws)
            ),
        )

    def interval(
        self, correlations_D: NDArray[np.float64], subset: str, level: float = LEVEL
    ) -> Interval | None:
        """The interval of a correlation among a subset; None where it is not defined."""
        if not math.isfinite(correlations_D[0]):
            return None
        needed_D = correlations_D[: 1 + self._draws(subset, level)]
        return interval_from_draws(needed_D, self._prompt_count(subset), level)

    def _draws(self, subset: str, level: float) -> int:
        return draws_for_level(self._prompt_count(subset), level, at_least=DRAWS)

    def _prompt_count(self, subset: str) -> int:
        """Prompts with a token in the subset; all tokens of a prompt come from one rollout."""
        prompts = zip(self.prompts, self.subsets[subset].tolist(), strict=True)
        return len({prompt for prompt, is_member in prompts if is_member})

    @property
    def ceiling(self) -> float:
        # Spearman-Brown: the reliability of the whole from the correlation of its halves.
        even, odd = self.halves
        rho = float(rank_correlations(even, odd, self.weight_N[None])[0])
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
    w, credit, delta = (
        {arm: _column(token_records[arm], column) for arm in costs}
        for column in ("w", "credit", "delta")
    )
    explicit_credit = {arm: credit[arm] for arm in costs if costs[arm]["kind"] in EXPLICIT_KINDS}
    credit_draws = tokens.draw_correlations("all", explicit_credit, level_gain)
    movement_draws = tokens.draw_correlations("moving", delta, level_lift)
    moving_credit_draws = tokens.draw_correlations("moving", credit)
    weighted_arms = [
        arm for arm, cost in costs.items() if cost["kind"] in WEIGHTED_KINDS and not cost["ones"]
    ]
    right_draws = tokens.draw_correlations("right", {arm: w[arm] for arm in weighted_arms})
    wrong_draws = tokens.draw_correlations("wrong", {arm: -w[arm] for arm in weighted_arms})
    results = []
    for arm, cost in costs.items():
        movement_D, moving_credit_D = movement_draws[arm], moving_credit_draws[arm]
        credit_D = credit_draws.get(arm)
        right = wrong = gain = lift = None
        if arm in weighted_arms:
            right = tokens.interval(right_draws[arm], "right")
            wrong = tokens.interval(wrong_draws[arm], "wrong")
        if credit_D is not None and not cost["ones"]:
            gain = tokens.interval(credit_D - credit_draws[BASELINE], "all", level_gain)
        if arm != BASELINE:
            lift = tokens.interval(movement_D - movement_draws[BASELINE], "moving", level_lift)
        hidden_D = movement_D[: len(moving_credit_D)] - moving_credit_D
        residual, group, cancellation = _pull_ratios(_records_of(records, arm, "prompt"))
        results.append(
            ArmCorrelations(
                arm=arm,
                kind=cost["kind"],
                all_ones=cost["ones"],
                credit=None if credit_D is None else tokens.interval(credit_D, "all"),
                right=right,
                wrong=wrong,
                gain=gain,
                moved=tokens.interval(movement_D, "moving"),
                lift=lift,
                hidden=tokens.interval(hidden_D, "moving"),
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
