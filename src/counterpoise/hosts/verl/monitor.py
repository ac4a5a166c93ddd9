"""Where the tokens of a batch went: log p after its update minus log p before it.

verl's scoring pass has the log-probabilities before; one more pass gives those after, in the same
layout. An update is all optimizer steps of a batch. Who pushed a token (microscope/coupling.py)
needs hidden states and the whole unembedding, which ranks share out: that is not looked at here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.microscope.displacement import flipped_tokens, shares_by_sign
from counterpoise.types import Floats


def moved(
    before: Sequence[Floats], after: Sequence[Floats], advantages: Sequence[Floats]
) -> dict[str, float]:
    """Shares of the trained tokens, each list by row, under the names of metrics.jsonl."""
    delta_N = np.concatenate(after) - np.concatenate(before)
    advantages_N = np.concatenate(advantages)
    found: dict[str, float] = {}
    for sign, shares in shares_by_sign(delta_N, advantages_N).items():
        if shares is not None:
            found |= {
                f"boosted_{sign}": shares.boosted,
                f"suppressed_{sign}": shares.suppressed,
                f"stable_{sign}": shares.stable,
                f"moved_{sign}": shares.mean_abs,
            }
    signal_N = advantages_N != 0
    if signal_N.any():
        found["flipped"] = float(flipped_tokens(delta_N, advantages_N)[signal_N].mean())
    return found
