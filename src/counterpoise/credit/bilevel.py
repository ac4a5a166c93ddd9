"""Bi-level reshaping (OAR): the importance of a token for the outcome becomes its weight.

    a_t = log(1 + I_t)      n_t = (a_t - min a) / (max a - min a)      tau = quantile_q(n)
    n_t <  tau   w_t = max(n_t / tau, 0.1)                   unimportant tokens are lowered
    n_t >= tau   w_t = 1 + beta (n_t - tau) / (1 - tau)      important tokens are raised
    then         w_t <- w_t T / sum w                        the rollout's total weight stays T

over the T tokens of one response that have an importance. All equal, or a single token: 1.
arXiv:2601.07408. q = 0.25 and beta = 1 are those of its authors' README; another implementation
(GRAIL's) has 0.4 and 2; which ones the paper used was not found. The floor of 0.1 is that of the
authors' code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.types import Floats

DEFAULT_QUANTILE, DEFAULT_BOOST = 0.25, 1.0
FLOOR = 0.1
EPSILON = 1e-8  # on denominators


def reshape_importance(
    importance_T: NDArray[np.floating],
    quantile: float = DEFAULT_QUANTILE,
    boost: float = DEFAULT_BOOST,
) -> Floats:
    """Weights [T] from importances [T], which must not be negative; the mean weight is 1."""
    T = len(importance_T)
    log_importance_T = np.log1p(importance_T.astype(np.float64))
    if T == 0 or (low := log_importance_T.min()) == (high := log_importance_T.max()):
        return np.ones(T, dtype=np.float32)
    normalised_T = (log_importance_T - low) / (high - low)
    threshold = _quantile(normalised_T, quantile)
    lowered_T = np.maximum(normalised_T / (threshold + EPSILON), FLOOR)
    raised_T = 1 + boost * (normalised_T - threshold) / (1 - threshold + EPSILON)
    weights_T = np.where(normalised_T < threshold, lowered_T, raised_T)
    return np.asarray(weights_T * T / weights_T.sum(), dtype=np.float32)


def _quantile(values_T: NDArray[np.float64], share: float) -> float:
    """np.quantile(x, share), five times as fast for the few values that a response has."""
    # The two branches of the interpolation are numpy's: they make both ends exact.
    values_T = np.sort(values_T)
    position = share * (len(values_T) - 1)
    below = int(position)
    fraction = position - below
    low, high = values_T[below], values_T[min(below + 1, len(values_T) - 1)]
    return float(
        low + (high - low) * fraction if fraction < 0.5 else high - (high - low) * (1 - fraction)
    )
