"""Train only the forking tokens: the share of tokens with the highest entropy. arXiv:2506.01939

    w_j = 1[H_j >= quantile_{1 - share}(H)]      over all tokens of the batch's rows with signal

share 0.2: the paper's. The quantile interpolates, like TRL's `top_entropy_quantile`; TRL also
counts rows without signal. The loss still divides by all tokens. Tokens at the threshold are kept.
"""

from __future__ import annotations

import numpy as np

from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.types import Floats


def weights(view: CreditView, *, share: float = 0.2) -> list[Floats]:
    """1 for the `share` of tokens with the highest entropy, 0 for all others."""
    if not 0 < share <= 1:
        raise PoiseError(
            f"high_entropy: share {share:g} selects no token: choose above 0 and at most 1"
        )
    if not view.rows:
        return []
    threshold = np.quantile(np.concatenate(view.entropies), 1 - share)
    return [(entropies_T >= threshold).astype(np.float32) for entropies_T in view.entropies]
