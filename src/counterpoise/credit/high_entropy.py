"""Only the forks: the share of tokens with the highest entropy is trained. arXiv:2506.01939

    w_j = 1[H_j >= quantile_{1 - share}(H)]      over all tokens of the batch's rows with signal

share 0.2: the paper's. The quantile interpolates, as TRL's `top_entropy_quantile` does; TRL's also
counts rows without signal. The loss still divides by all tokens. Equal entropies: all are kept.
"""

from __future__ import annotations

import numpy as np

from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.types import Floats


def weights(view: CreditView, *, share: float = 0.2) -> list[Floats]:
    if not 0 < share <= 1:
        raise PoiseError(f"high_entropy: share {share:g} keeps nothing: choose above 0, up to 1")
    if not view.rows:
        return []
    edge = np.quantile(np.concatenate(view.entropies), 1 - share)
    return [(entropies_T >= edge).astype(np.float32) for entropies_T in view.entropies]
