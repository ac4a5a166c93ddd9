"""Bi-level reshaping: how much a token matters to the outcome -> its weight (OAR).

    a_t = log(1 + I_t)      n_t = (a_t - min a) / (max a - min a)      tau = quantile_q(n)
    n_t <  tau   w_t = max(n_t / tau, 0.1)                   what matters little is held down
    n_t >= tau   w_t = 1 + beta (n_t - tau) / (1 - tau)      what matters most is raised
    then         w_t <- w_t T / sum w                        the rollout keeps its mass

over the T tokens of one response that were given an importance. All equal, or one token: 1.
arXiv:2601.07408. q = 0.25 and beta = 1 are those of its authors' README; another implementation
(GRAIL's) has 0.4 and 2; which ones the paper used was not found. The floor is the code's.
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
    """Weights [T] of importances >= 0 [T]; their mean is 1."""
    T = len(importance_T)
    a_T = np.log1p(importance_T.astype(np.float64))
    if T == 0 or (low := a_T.min()) == (high := a_T.max()):
        return np.ones(T, dtype=np.float32)
    n_T = (a_T - low) / (high - low)
    tau = _quantile(n_T, quantile)
    low_T = np.maximum(n_T / (tau + EPSILON), FLOOR)
    high_T = 1 + boost * (n_T - tau) / (1 - tau + EPSILON)
    w_T = np.where(n_T < tau, low_T, high_T)
    return np.asarray(w_T * T / w_T.sum(), dtype=np.float32)


def _quantile(x_T: NDArray[np.float64], share: float) -> float:
    """np.quantile(x, share), in a fifth of its time for as few values as a response has."""
    x_T = np.sort(x_T)
    place = share * (len(x_T) - 1)
    below = int(place)
    rest = place - below
    low, high = x_T[below], x_T[min(below + 1, len(x_T) - 1)]
    return float(low + (high - low) * rest if rest < 0.5 else high - (high - low) * (1 - rest))
