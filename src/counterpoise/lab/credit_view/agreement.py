"""Similarity of weightings: Spearman's rank correlation of their weights over all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.statistics.ranks import correlations_with
from counterpoise.types import Floats


def rank_agreement(weights_M: Sequence[Sequence[Floats]]) -> list[list[float | None]]:
    """Rank correlation of every pair of M weightings: [M, M]; None where one is constant."""
    # One bootstrap draw in which every token counts once.
    unit_counts = np.ones((1, sum(map(len, weights_M[0]))))
    columns = {str(m): np.concatenate(weights) for m, weights in enumerate(weights_M)}
    rho_MM = [
        [float(rho[0]) for rho in correlations_with(column, columns, [unit_counts]).values()]
        for column in columns.values()
    ]
    return [[rho if np.isfinite(rho) else None for rho in row] for row in rho_MM]
