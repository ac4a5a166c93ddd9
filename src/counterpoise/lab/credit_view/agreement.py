"""How alike weightings are: Spearman's rank correlation of their weights over all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.statistics.ranks import correlations, ranks
from counterpoise.types import Floats


def rank_agreement(weights_M: Sequence[Sequence[Floats]]) -> list[list[float | None]]:
    """[M, M] of M weightings; None where one of the two is the same everywhere."""
    once = np.ones((1, sum(map(len, weights_M[0]))))  # every token counts once
    ranks_M = [ranks(np.concatenate(weights), once) for weights in weights_M]
    found_MM = [[float(correlations(a, b, once)[0]) for b in ranks_M] for a in ranks_M]
    return [[rho if np.isfinite(rho) else None for rho in line] for line in found_MM]
