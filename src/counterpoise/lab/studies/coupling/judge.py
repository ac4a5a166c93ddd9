"""Numbers and verdict of the coupling study."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from counterpoise.lab.studies.coupling.draw import FIRST_HIGH_BIN
from counterpoise.statistics.bootstrap import (
    Interval,
    Weights,
    bootstrap_interval,
    difference_interval,
    mean_interval,
    ratio_interval,
)
from counterpoise.statistics.finding import Finding, Number, Records, Verdict

NEGLIGIBLE = 0.01  # values of |phi|, which is at most 2, up to here count as 0
PRIMARY = "coupling by equal tokens, both of low confidence"
PRIMARY_PAIRS = "pairs of equal tokens, both of low confidence"
EQUAL = "coupling by equal tokens"
RIVALS = "coupling by rivals"
LOW = "coupling by tokens both of low confidence"
MISSING_FROM_EQ_10 = "part of phi that eq. 10 lacks, equal tokens"


def judge(records: Records) -> Finding:
    sampled = [record for record in records if record["panel"] == "pairs"]
    cells = [record for record in records if record["panel"] == "cells"]
    prompts = [record["prompt"] for record in sampled]
    is_equal = [record["kind"] == "equal" for record in sampled]
    positive_share = mean_interval(prompts, [record["similarity"] > 0 for record in sampled])
    similarity_excess = difference_interval(
        prompts, [record["similarity"] for record in sampled], is_equal
    )
    couples_noticeably = [abs(record["phi"]) > NEGLIGIBLE for record in sampled]
    coupling_excess = difference_interval(prompts, couples_noticeably, is_equal)
    by_entropy = _entropy_gaps(cells)
    two_over_one = _entropy_ratio(cells, 1)
    # Every claim as an interval that must lie above 0.
    claims = [
        tuple(bound - 0.5 for bound in positive_share),
        similarity_excess,
        coupling_excess,
        *by_entropy,
    ]
    numbers = (
        Number("products <h_j, h_k> above 0", *positive_share, unit="share"),
        Number("<h_j, h_k>, equal minus different tokens", *similarity_excess),
        *_numbers_by_kind(sampled, "cosine"),
        Number("|phi| > 0.01, equal tokens", *_phi_frequency(sampled, "equal"), unit="share"),
        Number(
            "|phi| > 0.01, different tokens", *_phi_frequency(sampled, "different"), unit="share"
        ),
        Number("coupling of two high entropies over one", *two_over_one),
        Number("coupling of two high entropies over none", *_entropy_ratio(cells, 0)),
        *_concentration(cells),
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
            f"carry {percent[EQUAL]:.0f} %, rivals (different tokens that could have stood in each "
            f"other's place) {percent[RIVALS]:.0f} %.",
            f"The printed eq. 10 lacks {percent[MISSING_FROM_EQ_10]:.0f} % of phi between equal "
            "tokens: equal tokens share their alternatives too. This package computes eq. 8.",
        ),
    )


def _numbers_by_kind(sampled: Records, column: str) -> list[Number]:
    return [
        Number(f"{column}, {kind} tokens", *mean_interval(*_columns(sampled, column, kind)))
        for kind in ("equal", "different")
    ]


def _columns(sampled: Records, column: str, kind: str) -> tuple[list[str], list[float]]:
    kind_records = [record for record in sampled if record["kind"] == kind]
    return [record["prompt"] for record in kind_records], [
        record[column] for record in kind_records
    ]


def _phi_frequency(sampled: Records, kind: str) -> Interval:
    prompts, phi = _columns(sampled, "phi", kind)
    return mean_interval(prompts, [abs(value) > NEGLIGIBLE for value in phi])


def _entropy_gaps(cells: Records) -> list[Interval]:
    """Mean coupling of two high entropies minus that of one, and of none."""
    mean, prompts = _mean_by_entropy(cells), [record["prompt"] for record in cells]
    return [
        bootstrap_interval(prompts, lambda w_N: mean(w_N, 2) - mean(w_N, 1)),
        bootstrap_interval(prompts, lambda w_N: mean(w_N, 2) - mean(w_N, 0)),
    ]


def _entropy_ratio(cells: Records, fewer: int) -> Interval:
    mean = _mean_by_entropy(cells)

    def ratio(w_N: Weights) -> float:
        weaker = mean(w_N, fewer)
        return mean(w_N, 2) / weaker if weaker else float("nan")

    return bootstrap_interval([record["prompt"] for record in cells], ratio)


def _mean_by_entropy(cells: Records) -> Callable[[Weights, int], float]:
    """(weights, how many of the two have high entropy) -> mean coupling of such pairs."""
    strength, count = (
        np.array([record[column] for record in cells], float) for column in ("strength", "pairs")
    )
    high_N = np.array(
        [
            (record["entropy_j"] >= FIRST_HIGH_BIN) + (record["entropy_k"] >= FIRST_HIGH_BIN)
            for record in cells
        ]
    )

    def mean(w_N: Weights, high_count: int) -> float:
        is_inside_N = high_N == high_count
        pair_count = (w_N * count)[is_inside_N].sum()
        return (
            float((w_N * strength)[is_inside_N].sum() / pair_count) if pair_count else float("nan")
        )

    return mean


def _concentration(cells: Records) -> list[Number]:
    equal_N = np.array([record["kind"] == "equal" for record in cells])
    low_N = equal_N & np.array([record["low"] == 2 for record in cells])
    quantities = (
        (PRIMARY, "strength", low_N),
        (PRIMARY_PAIRS, "pairs", low_N),
        (EQUAL, "strength", equal_N),
        (RIVALS, "strength", np.array([record["kind"] == "rival" for record in cells])),
        (LOW, "strength", np.array([record["low"] == 2 for record in cells])),
        ("pairs of equal tokens", "pairs", equal_N),
    )
    return [
        Number(number_name, *_share_interval(cells, column, member_N), unit="share")
        for number_name, column, member_N in quantities
    ]


def _share_interval(records: Records, column: str, inside_N: np.ndarray) -> Interval:
    column_N = np.array([record[column] for record in records])
    return ratio_interval([record["prompt"] for record in records], column_N * inside_N, column_N)


def _net_share(records: Records) -> Interval:
    """sum_j |push of equal tokens| / sum_j (|equal| + |different|), without the token itself."""
    part_records = [
        record for record in records if record["panel"] == "parts" and record["kind"] != "own"
    ]
    return _share_interval(
        part_records, "strength", np.array([record["kind"] == "equal" for record in part_records])
    )


def _missing_from_eq_10(sampled: Records) -> list[Number]:
    equal_pairs = [record for record in sampled if record["kind"] == "equal"]
    phi = np.array([record["phi"] for record in equal_pairs])
    missing = phi - np.array([record["printed"] for record in equal_pairs])
    missing_share = ratio_interval([record["prompt"] for record in equal_pairs], missing, phi)
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
