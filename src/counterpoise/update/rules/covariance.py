"""How much a token is about to lower the entropy: its part of a covariance.

    c_t = (A_t - mean A) (log pi(o_t) - mean log pi)         means over the tokens of a step

The entropy of a softmax policy falls, for a small step, in proportion to the covariance of log pi
and A: likely tokens that are rewarded make the policy more certain, and so do unlikely ones that
are punished. c_t is one token's part; it is large for a few tokens in ten thousand.
arXiv:2505.22617
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import PoiseError
from counterpoise.update.rules.bind import OptimizerStepView


def covariances(step: OptimizerStepView) -> NDArray[np.float64]:
    """c [N] of the tokens of all rows, by the current weights."""
    A_N = np.concatenate([row.advantages_T for row in step.rows]).astype(np.float64)
    logprobs_N = np.concatenate(step.logprobs).astype(np.float64)
    covariance_N: NDArray[np.float64] = (A_N - A_N.mean()) * (logprobs_N - logprobs_N.mean())
    return covariance_N


def num_selected(share: float, tokens: int) -> int:
    """A share of the tokens, rounded down, but at least one."""
    return max(1, int(share * tokens))


def check_share(rule_name: str, share: float) -> None:
    """Raise unless 0 < share <= 1."""
    if not 0 < share <= 1:
        raise PoiseError(f"{rule_name}: share must be above 0 and at most 1, not {share:g}")
