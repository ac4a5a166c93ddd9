"""Clip-Cov: drop from the step a few of the tokens that lower the entropy most.

    k_t = 0  for share * N tokens, drawn at random from those with low < c_t < high that the
             surrogate's clip has not removed already
    k_t = 1  for all others

c is the token's part of the covariance of advantage and log pi over the N tokens of the step
(`update/rules/covariance.py`). With fewer candidates all of them are left out; with none the step
is unchanged. share * N is at least one token. The choice follows from the run's seed, the iteration
and the step.

arXiv:2505.22617. share = 2e-4, low = 1, high = 5 are those of verl's implementation, which computes
c over a micro-batch, so that the choice depends on how a step is cut; here it does not.
"""

from __future__ import annotations

import numpy as np

from counterpoise.errors import PoiseError
from counterpoise.update.rules.bind import OptimizerStepView
from counterpoise.update.rules.covariance import check_share, covariances, num_selected
from counterpoise.update.rules.rule import RuleEffect


def rule(
    step: OptimizerStepView, *, share: float = 2e-4, low: float = 1.0, high: float = 5.0
) -> RuleEffect:
    """Set the factors of the chosen tokens to 0."""
    check_share("clip_cov", share)
    if not low < high:
        raise PoiseError(f"clip_cov: low={low:g} must be below high={high:g}")
    if not step.rows:
        return RuleEffect()
    covariance_N = covariances(step)
    # Tokens that the surrogate clips already have no gradient to remove.
    candidates = np.flatnonzero((covariance_N > low) & (covariance_N < high) & ~step.clipped)
    if not len(candidates):
        return RuleEffect()
    num_dropped = min(num_selected(share, len(covariance_N)), len(candidates))
    dropped = step.rng("clip_cov").choice(candidates, size=num_dropped, replace=False)
    factors_N = np.ones(len(covariance_N), dtype=np.float32)
    factors_N[dropped] = 0
    return RuleEffect(factors=step.split_by_row(factors_N), num_chosen=num_dropped)
