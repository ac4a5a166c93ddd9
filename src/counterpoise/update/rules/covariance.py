"""How much a token is about to lower the entropy: its part of a covariance.

    c_t = (A_t - mean A) (log pi(o_t) - mean log pi)         means over the tokens of a step

The entropy of a softmax policy falls, for a small step, by the covariance of log pi and A: tokens
that are likely and rewarded make the policy surer, and so do unlikely ones that are punished. c_t
is one token's part; a few per ten thousand have a large one. arXiv:2505.22617
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import PoiseError
from counterpoise.update.rules.bind import OptimizerStepView


def covariances(step: OptimizerStepView) -> NDArray[np.float64]:
    """c [N] of the tokens of all rows, by the weights as they are."""
    A_N = np.concatenate([row.advantages_T for row in step.rows]).astype(np.float64)
    logprobs_N = np.concatenate(step.logprobs).astype(np.float64)
    found: NDArray[np.float64] = (A_N - A_N.mean()) * (logprobs_N - logprobs_N.mean())
    return found


def num_selected(share: float, tokens: int) -> int:
    """A share of the tokens, rounded down, and one at least."""
    return max(1, int(share * tokens))


def check_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise PoiseError(f"{name}: share is above 0 and at most 1, not {share:g}")
