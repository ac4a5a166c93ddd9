"""CRPO's entropy factor: less credit for a response that could as well be a generic one.

    w_i = 1 - scale H_b(p_i)        p_i = e^{l_i} / (e^{l_i} + e^{l_0})

    l_i    mean log pi(o_t) of the response, after its prompt
    l_0    mean log pi(o_t) of the group's anchors, after the generic text (`sample.anchors`)
    H_b    entropy of a coin, -p log p - (1 - p) log(1 - p), at most log 2

A response that is as likely as a generic one has p = 1/2 and the smallest weight, 1 - 0.69 scale.
All tokens of a response have the same weight. arXiv:2605.25511, as in the authors' code; scale =
0.02 is theirs, so that credit falls by 1.4 % at most. They compute it anew in every optimizer step;
here it is computed once an iteration: l_i by the trainer, with the weights that sampled, and l_0
from the log-probabilities that the sampler returned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.types import Floats


def weights(view: CreditView, *, scale: float = 0.02) -> list[Floats]:
    """One weight for all tokens of a row, by how unlike its group's generic responses it is."""
    if not 0 <= scale <= 1:
        raise PoiseError(f"crpo: scale must be 0 to 1, not {scale:g}")
    if not view.rows:
        return []
    generic_logprobs = view.generic_logprobs
    if None in generic_logprobs:
        raise PoiseError(
            "credit.weights=crpo compares responses with generic ones: set sample.anchors=1"
        )
    means_R = np.array([logprobs_T.mean(dtype=np.float64) for logprobs_T in view.logprobs])
    weights_R = 1 - scale * coin_entropy(means_R - np.array(generic_logprobs, dtype=np.float64))
    return [
        np.full(row.num_tokens, weight, dtype=np.float32)
        for row, weight in zip(view.rows, weights_R, strict=True)
    ]


def coin_entropy(log_odds_R: NDArray[np.float64]) -> NDArray[np.float64]:
    """H_b(p) in nats at p = 1 / (1 + e^-x); even in x, and without overflow."""
    size_R = np.abs(log_odds_R)
    rarer_R = np.exp(-size_R)  # odds of the rarer side
    entropy_R: NDArray[np.float64] = np.log1p(rarer_R) + size_R * rarer_R / (1 + rarer_R)
    return entropy_R
