"""Similarity of weightings: Spearman's rank correlation of their weights over all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.statistics.ranks import weighted_correlations, weighted_ranks
from counterpoise.types import Floats


def rank_agreement(weights_M: Sequence[Sequence[Floats]]) -> list[list[float | None]]:
    """Rank correlation of every pair of M weightings: [M, M]; None where one is constant."""
    # One bootstrap draw in which every token counts once.
    unit_counts = np.ones((1, sum(map(len, weights_M[0]))))
    ranks_M = [weighted_ranks(np.concatenate(weights), unit_counts) for weights in weights_M]
    rho_MM = [
        [
            float(weighted_correlations(first_ranks, second_ranks, unit_counts)[0])
            for second_ranks in ranks_M
        ]
        for first_ranks in ranks_M
    ]
    return [[rho if np.isfinite(rho) else None for rho in row] for row in rho_MM]
