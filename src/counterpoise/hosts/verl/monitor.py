"""How an update moved the tokens of its batch: log p after it minus log p before it.

verl's scoring pass gives the log-probabilities before; one more pass gives those after, in the same
layout. An update is all optimizer steps of a batch. Which tokens pushed a token
(microscope/coupling.py) is not measured here: it needs hidden states and the whole unembedding,
which the ranks hold in shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.microscope.displacement import flipped_tokens, shares_by_sign
from counterpoise.types import Floats


def displacement_shares(
    logprobs_before: Sequence[Floats],
    logprobs_after: Sequence[Floats],
    advantages: Sequence[Floats],
) -> dict[str, float]:
    """Shares of the trained tokens that moved, named as in metrics.jsonl; the lists are by row."""
    delta_N = np.concatenate(logprobs_after) - np.concatenate(logprobs_before)
    advantages_N = np.concatenate(advantages)
    metrics: dict[str, float] = {}
    for sign, shares in shares_by_sign(delta_N, advantages_N).items():
        if shares is not None:
            metrics |= {
                f"boosted_{sign}": shares.boosted,
                f"suppressed_{sign}": shares.suppressed,
                f"stable_{sign}": shares.stable,
                f"moved_{sign}": shares.mean_abs,
            }
    has_signal_N = advantages_N != 0
    if has_signal_N.any():
        metrics["flipped"] = float(flipped_tokens(delta_N, advantages_N)[has_signal_N].mean())
    return metrics
