"""RSI-S: train the tokens whose surprise is what their distribution leads one to expect.

    RSI_t = -log pi(o_t) / H_t          w_t = 1[low <= RSI_t <= high]

H_t is the entropy of the distribution that o_t was drawn from, the mean of the surprisal over it:
an index of 1 is a typical draw. A likely token has an index near 0 and teaches little; an index far
above 1 is a draw from the tail, whose gradient is large and unstable. So neither high entropy nor
low probability decides alone. Where the entropy is 0 the index is 0. arXiv:2606.31575

low 0.5 and high 2: chosen here, half and twice the expected surprisal; the interval of the paper
was not found. Most tokens of a trained model are near certain: the embedded model keeps 6 %. The
loss still divides by all tokens.
"""

from __future__ import annotations

import numpy as np

from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.types import Floats

SMALLEST_ENTROPY = 1e-6  # in nats; below it a distribution counts as certain


def weights(view: CreditView, *, low: float = 0.5, high: float = 2.0) -> list[Floats]:
    """1 for tokens whose relative surprisal lies in the band, 0 for all others."""
    if not 0 <= low < high:
        raise PoiseError(f"rsi_s: low {low:g} must be 0 or above and below high {high:g}")
    if not view.rows:
        return []
    row_weights = []
    for logprobs_T, entropies_T in zip(view.logprobs, view.entropies, strict=True):
        index_T = np.divide(
            -logprobs_T.astype(np.float64),
            entropies_T.astype(np.float64),
            out=np.zeros(len(logprobs_T)),
            where=entropies_T > SMALLEST_ENTROPY,
        )
        row_weights.append(((low <= index_T) & (index_T <= high)).astype(np.float32))
    return row_weights
