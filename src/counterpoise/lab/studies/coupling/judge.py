"""Numbers and verdict of the coupling study.

A pair of tokens belongs to two prompts, and both are resampled (statistics/pair_bootstrap.py). A
coupling after summation over k is a number of token j alone; its interval resamples the prompts of
j and takes the rest of the batch as given.
"""

from __future__ import annotations

import numpy as np

from counterpoise.errors import PoiseError
from counterpoise.statistics.bootstrap import Interval, ratio_interval
from counterpoise.statistics.finding import Finding, Number, Records, Verdict
from counterpoise.statistics.pair_bootstrap import PairBootstrap, divide

NEGLIGIBLE = 0.01  # values of |phi|, which is at most 2, up to here count as 0
PRIMARY = "coupling by equal tokens, both of low confidence"
PRIMARY_PAIRS = "pairs of equal tokens, both of low confidence"
EQUAL = "coupling by equal tokens"
RIVALS = "coupling by rivals"
LOW = "coupling by tokens both of low confidence"
MISSING_FROM_EQ_10 = "part of phi that eq. 10 lacks, equal tokens"


def judge(records: Records) -> Finding:
    sampled = [record for record in records if record["panel"] == "pairs"]
    summed = [record for record in records if record["panel"] == "prompt_pairs"]
    if not summed:
        raise PoiseError(
            "the coupling records lack the prompts of both tokens: measure again with --again"
        )
    pairs, is_equal_N = _resample(sampled), _is_kind(sampled, "equal")
    similarity_N, phi_N = _column(sampled, "similarity"), _column(sampled, "phi")
    couples_noticeably_N = np.abs(phi_N) > NEGLIGIBLE
    positive_share = pairs.interval(pairs.means(similarity_N > 0, np.ones(len(sampled))))
    similarity_excess, coupling_excess = (
        pairs.interval(pairs.means(values_N, is_equal_N) - pairs.means(values_N, ~is_equal_N))
        for values_N in (similarity_N, couples_noticeably_N)
    )
    two_high, one_high, none_high = (_mean_by_entropy(summed, count) for count in (2, 1, 0))
    by_pairs = _resample(summed)
    two_over_one = by_pairs.interval(divide(two_high, one_high))
    # Every claim as an interval that must lie above 0.
    claims = [
        tuple(bound - 0.5 for bound in positive_share),
        similarity_excess,
        coupling_excess,
        by_pairs.interval(two_high - one_high),
        by_pairs.interval(two_high - none_high),
    ]
    numbers = (
        Number("products <h_j, h_k> above 0", *positive_share, unit="share"),
        Number("<h_j, h_k>, equal minus different tokens", *similarity_excess),
        *_numbers_by_kind(sampled, "cosine", _column(sampled, "cosine")),
        *_numbers_by_kind(sampled, "|phi| > 0.01", couples_noticeably_N, unit="share"),
        Number("coupling of two high entropies over one", *two_over_one),
        Number(
            "coupling of two high entropies over none",
            *by_pairs.interval(divide(two_high, none_high)),
        ),
        *_concentration(summed),
        Number("coupling by equal tokens after summation", *_net_share(records), unit="share"),
        *_missing_from_eq_10(sampled),
    )
    verdict: Verdict = "inconclusive"
    if all(low > 0 for _, low, _ in claims):
        verdict = "replicated"
    elif any(high < 0 for _, _, high in claims):
        verdict = "not replicated"
    percent = {number.name: 100 * number.value for number in numbers}
    return Finding(
        verdict,
        f"{percent['products <h_j, h_k> above 0']:.0f} % of products are positive; |phi| exceeds "
        f"0.01 in {percent['|phi| > 0.01, equal tokens']:.2g} % of pairs of equal tokens and in "
        f"{percent['|phi| > 0.01, different tokens']:.2g} % of others; two tokens of high entropy "
        f"couple {two_over_one[0]:.0f} times as strongly as one of them with another token.",
        numbers,
        (
            f"Pairs of equal tokens, both of low confidence, are {percent[PRIMARY_PAIRS]:.2g} % of "
            f"all pairs and carry {percent[PRIMARY]:.0f} % of the coupling. Equal tokens in all "
            f"carry {percent[EQUAL]:.0f} %, rivals (different tokens, one of which has at least "
            f"5 % where the other stands) {percent[RIVALS]:.0f} %.",
            f"The printed eq. 10 lacks {percent[MISSING_FROM_EQ_10]:.0f} % of phi between equal "
            "tokens: equal tokens share their alternatives too. This package computes eq. 8.",
        ),
    )


def _resample(pair_records: Records) -> PairBootstrap:
    return PairBootstrap(
        [record["prompt"] for record in pair_records],
        [record["prompt_k"] for record in pair_records],
    )


def _column(records: Records, column: str) -> np.ndarray:
    return np.array([record[column] for record in records], dtype=np.float64)


def _is_kind(records: Records, kind: str) -> np.ndarray:
    return np.array([record["kind"] == kind for record in records])


def _numbers_by_kind(
    sampled: Records, name: str, values_N: np.ndarray, unit: str = ""
) -> list[Number]:
    pairs = _resample(sampled)
    return [
        Number(
            f"{name}, {kind} tokens",
            *pairs.interval(pairs.means(values_N, _is_kind(sampled, kind))),
            unit=unit,
        )
        for kind in ("equal", "different")
    ]


def _mean_by_entropy(summed: Records, high_count: int) -> np.ndarray:
    """Mean coupling of pairs of which `high_count` tokens have high entropy: [1 + draws]."""
    pairs = _resample(summed)
    is_inside_N = _column(summed, "high") == high_count
    return pairs.ratios(
        _column(summed, "strength") * is_inside_N, _column(summed, "pairs") * is_inside_N
    )


def _concentration(summed: Records) -> list[Number]:
    pairs = _resample(summed)
    equal_N, low_N = _is_kind(summed, "equal"), _column(summed, "low") == 2
    quantities = (
        (PRIMARY, "strength", equal_N & low_N),
        (PRIMARY_PAIRS, "pairs", equal_N & low_N),
        (EQUAL, "strength", equal_N),
        (RIVALS, "strength", _is_kind(summed, "rival")),
        (LOW, "strength", low_N),
        ("pairs of equal tokens", "pairs", equal_N),
    )
    numbers = []
    for number_name, column, member_N in quantities:
        values_N = _column(summed, column)
        share = pairs.interval(pairs.ratios(values_N * member_N, values_N))
        numbers.append(Number(number_name, *share, unit="share"))
    return numbers


def _net_share(records: Records) -> Interval:
    """sum_j |push of equal tokens| / sum_j (|equal| + |different|), without the token itself."""
    part_records = [
        record for record in records if record["panel"] == "parts" and record["kind"] != "own"
    ]
    strength_N = _column(part_records, "strength")
    return ratio_interval(
        [record["prompt"] for record in part_records],
        strength_N * _is_kind(part_records, "equal"),
        strength_N,
    )


def _missing_from_eq_10(sampled: Records) -> list[Number]:
    equal_pairs = [record for record in sampled if record["kind"] == "equal"]
    phi = _column(equal_pairs, "phi")
    missing = phi - _column(equal_pairs, "printed")
    pairs = _resample(equal_pairs)
    missing_share = pairs.interval(pairs.ratios(missing, phi))
    # Pairs that do not couple have no meaningful share.
    is_coupled = phi > 1e-9
    missing_shares = (
        missing[is_coupled] / phi[is_coupled] if is_coupled.any() else np.array([np.nan])
    )
    low, median, high = np.quantile(missing_shares, (0.25, 0.5, 0.75)).tolist()
    return [
        Number(MISSING_FROM_EQ_10, *missing_share, unit="share"),
        Number("the same, lower quartile over pairs", low, unit="share"),
        Number("the same, median over pairs", median, unit="share"),
        Number("the same, upper quartile over pairs", high, unit="share"),
    ]
