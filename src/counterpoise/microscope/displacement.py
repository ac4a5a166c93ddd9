"""Classes of tokens by their displacement, the change of log p in an update (Algorithm 1, eq. 16).

    boosted: > eps      suppressed: < -eps      stable: otherwise      eps = 1e-6

A token is flipped when it moves against the sign of its own advantage. A displacement that was not
measured is nan and counts nowhere. Both log-probabilities must come from the same forward pass in
the same batch layout: then an update that changes nothing leaves exactly 100 % of tokens stable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class DisplacementShares:
    """Shares of the three classes among the tokens with one sign of advantage.

    Example:
        DisplacementShares(
            tokens=3100, boosted=0.46, suppressed=0.41, stable=0.13, mean=0.0004, mean_abs=0.012
        )
    """

    tokens: int  # that were measured
    boosted: float
    suppressed: float
    stable: float
    mean: float  # mean of delta
    mean_abs: float  # mean of |delta|


def displacement_classes(
    delta_N: NDArray[np.floating], epsilon: float = EPSILON
) -> NDArray[np.int8]:
    """+1 boosted, -1 suppressed, 0 stable or not measured."""
    return ((delta_N > epsilon).astype(np.int8) - (delta_N < -epsilon)).astype(np.int8)


def displacement_shares(
    delta_N: NDArray[np.floating], epsilon: float = EPSILON
) -> DisplacementShares | None:
    """Shares of boosted, suppressed and stable tokens; None where nothing was measured."""
    delta_N = delta_N[~np.isnan(delta_N)]
    if not len(delta_N):
        return None
    class_N = displacement_classes(delta_N, epsilon)
    return DisplacementShares(
        tokens=len(delta_N),
        boosted=float((class_N > 0).mean()),
        suppressed=float((class_N < 0).mean()),
        stable=float((class_N == 0).mean()),
        mean=float(delta_N.mean()),
        mean_abs=float(np.abs(delta_N).mean()),
    )


def shares_by_sign(
    delta_N: NDArray[np.floating], advantages_N: NDArray[np.floating]
) -> dict[str, DisplacementShares | None]:
    """The shares as {"positive": ..., "negative": ...}, by the sign of each token's advantage."""
    return {
        "positive": displacement_shares(delta_N[advantages_N > 0]),
        "negative": displacement_shares(delta_N[advantages_N < 0]),
    }


def flipped_tokens(
    delta_N: NDArray[np.floating], advantages_N: NDArray[np.floating]
) -> NDArray[np.bool_]:
    """True for tokens that moved against their own advantage."""
    return np.sign(advantages_N) * displacement_classes(delta_N) < 0
