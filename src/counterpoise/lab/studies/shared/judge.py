"""Matched differences between shared and specific nodes, and the verdicts on three claims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from counterpoise.statistics.bootstrap import (
    Interval,
    Weights,
    bootstrap_interval,
    format_interval,
    ratio_interval,
    weighted_mean,
)
from counterpoise.statistics.finding import (
    ClaimVerdict,
    Finding,
    Number,
    Record,
    Records,
    Verdict,
    join_verdicts,
)

ARMS = ("joint", "positive_only", "shuffled")
JUDGED_OPTIMIZER = "adamw"
PROBABILITY_BINS, FREQUENCY_BINS = 5, 3
# An effect below this share of the specific tokens' mean rise counts as absent.
SMALLEST_EFFECT = 0.25
SPECIFIC_CLAIM = "tokens specific to success rise more than shared ones"
CAUSE_CLAIM = "failed rollouts hold the shared ones back"
SIGN_MIX_CLAIM = "at fixed frequency the mix of signs decides"
BINNINGS = {"token": "by token", "node": "by node"}


class NodeTable:
    """The measured nodes as columns, and statistics of them under any weights of the prompts."""

    def __init__(self, records: Records) -> None:
        self.records = [record for record in records if record["panel"] == "nodes"]
        self.prompts = [record["prompt"] for record in self.records]
        right_N, wrong_N = self.column("right"), self.column("wrong")
        self.is_specific = wrong_N == 0
        self.is_shared = (right_N > 0) & (wrong_N > 0)
        self.node_count = right_N + wrong_N
        self.sign_mix = (right_N - wrong_N) / self.node_count
        probability_bin = equal_bins(self.column("p"), PROBABILITY_BINS)
        batch_bin = equal_bins(self.column("in_batch"), FREQUENCY_BINS)
        self.bins = {
            "token": probability_bin * FREQUENCY_BINS + batch_bin,
            "node": probability_bin * 1_000 + self.node_count.astype(np.int64),
        }

    def column(self, name: str) -> NDArray[np.float64]:
        return np.array([record[name] for record in self.records], dtype=np.float64)

    def mean(self, values_N: NDArray[np.float64], is_member_N: NDArray[np.bool_]) -> Interval:
        return ratio_interval(self.prompts, values_N * is_member_N, is_member_N)

    def gap(self, values_N: NDArray[np.float64], binning: str) -> Interval:
        """Specific minus shared nodes within bins."""
        statistic = partial(
            binned_difference, values_N, self.is_specific, self.is_shared, self.bins[binning]
        )
        return bootstrap_interval(self.prompts, statistic)

    def sign_mix_slope(self, values_N: NDArray[np.float64]) -> Interval:
        """Change of `values_N` per unit of sign mix, among nodes that several rollouts pass."""
        is_member_N = self.node_count >= 2
        bins_N = self.bins["node"][is_member_N]
        mix_N, member_values_N = self.sign_mix[is_member_N], values_N[is_member_N]
        return bootstrap_interval(
            self.prompts,
            lambda w_N: slope_within_bins(member_values_N, mix_N, bins_N, w_N[is_member_N]),
        )


def equal_bins(values_N: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The bin of each value; bins hold about equally many, and equal values share one."""
    if not len(values_N):
        return np.zeros(0, dtype=np.int64)
    edges = np.quantile(values_N, np.arange(1, count) / count)
    return np.searchsorted(edges, values_N, side="left").astype(np.int64)


def binned_difference(
    values_N: NDArray[np.float64],
    is_first_N: NDArray[np.bool_],
    is_second_N: NDArray[np.bool_],
    bins_N: NDArray[np.int64],
    weights_N: Weights,
) -> float:
    """mean(first) - mean(second) within bins, averaged where both occur.

        d = sum_b m_b (mean_b(first) - mean_b(second)) / sum_b m_b        m_b = n1 n2 / (n1 + n2)

    m_b is the precision of a bin's difference if all values scatter alike.
    """
    num_bins = int(bins_N.max()) + 1 if len(bins_N) else 0
    counts, sums = [], []
    for is_member_N in (is_first_N, is_second_N):
        member_weights = weights_N * is_member_N
        counts.append(np.bincount(bins_N, member_weights, num_bins))
        sums.append(np.bincount(bins_N, member_weights * values_N, num_bins))
    both = (counts[0] > 0) & (counts[1] > 0)
    first_B, second_B = (
        total[both] / count[both] for total, count in zip(sums, counts, strict=True)
    )
    precision_B = counts[0][both] * counts[1][both] / (counts[0][both] + counts[1][both])
    return weighted_mean(first_B - second_B, precision_B)


def slope_within_bins(
    values_N: NDArray[np.float64],
    predictor_N: NDArray[np.float64],
    bins_N: NDArray[np.int64],
    weights_N: Weights,
) -> float:
    """Least-squares slope of values on the predictor, both less their bin's weighted mean."""
    num_bins = int(bins_N.max()) + 1 if len(bins_N) else 0
    count_B = np.bincount(bins_N, weights_N, num_bins)
    count_B[count_B == 0] = 1.0
    value_mean_B = np.bincount(bins_N, weights_N * values_N, num_bins) / count_B
    predictor_mean_B = np.bincount(bins_N, weights_N * predictor_N, num_bins) / count_B
    centred_N = predictor_N - predictor_mean_B[bins_N]
    spread = float((weights_N * centred_N**2).sum())
    if not spread:
        return float("nan")
    return float((weights_N * centred_N * (values_N - value_mean_B[bins_N])).sum()) / spread


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    table = NodeTable(records)
    joint, positive_only, shuffled = (table.column(f"{JUDGED_OPTIMIZER} {arm}") for arm in ARMS)
    rise = table.mean(joint, table.is_specific)
    gaps = {binning: table.gap(joint, binning) for binning in BINNINGS}
    causes = {binning: table.gap(joint - positive_only, binning) for binning in BINNINGS}
    slope = table.sign_mix_slope(joint)
    claims = (
        ClaimVerdict(SPECIFIC_CLAIM, verdict_on(list(gaps.values()), rise[0])),
        ClaimVerdict(CAUSE_CLAIM, verdict_on(list(causes.values()), rise[0])),
        ClaimVerdict(SIGN_MIX_CLAIM, verdict_on([slope], rise[0])),
    )
    numbers = [
        Number(f"mean change, {kind} tokens, {arm}, {optimizer}", *table.mean(delta_N, is_member_N))
        for optimizer in ("adamw", "sgd")
        for arm in ARMS
        for delta_N in [table.column(f"{optimizer} {arm}")]
        for kind, is_member_N in (("specific", table.is_specific), ("shared", table.is_shared))
    ]
    for binning, phrase in BINNINGS.items():
        numbers += [
            Number(f"specific minus shared, joint, matched {phrase}", *gaps[binning]),
            Number(f"of which failed rollouts cause, matched {phrase}", *causes[binning]),
            Number(
                f"specific minus shared, shuffled advantages, matched {phrase}",
                *table.gap(shuffled, binning),
            ),
            Number(
                f"specific minus shared, joint, sgd, matched {phrase}",
                *table.gap(table.column("sgd joint"), binning),
            ),
        ]
    numbers += [
        Number("slope on the mix of signs at fixed frequency", *slope),
        Number("the same with shuffled advantages", *table.sign_mix_slope(shuffled)),
        *_push_numbers(table),
        *_value_numbers(records),
    ]
    format_change = partial(format_interval, number_format="+.3f")
    return Finding(
        join_verdicts(claims),
        f"After one AdamW step tokens specific to success rose by {format_change(rise)} and "
        f"shared ones by {format_change(table.mean(joint, table.is_shared))}. Among tokens of "
        f"like probability and frequency the difference is {format_change(gaps['token'])} "
        f"({format_change(gaps['node'])} by node), of which failed rollouts cause "
        f"{format_change(causes['token'])} ({format_change(causes['node'])}). At fixed "
        f"frequency the slope on the mix of signs is {format_change(slope)}.",
        tuple(numbers),
        (
            f"{int(table.is_shared.sum())} shared and {int(table.is_specific.sum())} specific "
            f"nodes with p <= 0.5, of {len(set(table.prompts))} prompts.",
            "A node is a token after one prefix: after rollouts have parted they share no node, "
            "even where their words are the same.",
        ),
        claims,
    )


def verdict_on(effects: Sequence[Interval], rise: float) -> Verdict:
    """Replicated if all intervals lie above 0; not replicated if one lies below SMALLEST_EFFECT
    times `rise`; inconclusive otherwise, and where both hold."""
    absent = any(high < SMALLEST_EFFECT * rise for _, _, high in effects)
    present = all(low > 0 for _, low, _ in effects)
    if present and not absent:
        return "replicated"
    return "not replicated" if absent and not present else "inconclusive"


def _push_numbers(table: NodeTable) -> list[Number]:
    """1 - |net| / gross push through the output layer, by kind of node: 1 if all of it cancels."""
    right_N, wrong_N = table.column("push_right"), table.column("push_wrong")
    net_N, gross_N = np.abs(right_N + wrong_N), np.abs(right_N) + np.abs(wrong_N)
    return [
        Number(
            f"push of the output layer that cancels, {kind}",
            *ratio_interval(table.prompts, (gross_N - net_N) * is_member_N, gross_N * is_member_N),
            unit="share",
        )
        for kind, is_member_N in (("specific", table.is_specific), ("shared", table.is_shared))
    ]


def _value_numbers(records: Records) -> list[Number]:
    tokens: list[Record] = [record for record in records if record["panel"] == "value"]
    if not tokens:
        return []
    prompts = [record["prompt"] for record in tokens]
    value_N, probability_N = (
        np.array([record[name] for record in tokens], dtype=np.float64) for name in ("value", "p")
    )
    is_shared_N = np.array([record["wrong"] > 0 for record in tokens])
    gap = partial(
        binned_difference,
        value_N,
        ~is_shared_N,
        is_shared_N,
        equal_bins(probability_N, PROBABILITY_BINS),
    )
    return [
        Number(
            "value of specific minus shared tokens of like probability",
            *bootstrap_interval(prompts, gap),
        )
    ]
