"""Clip-Cov: a few of the tokens that lower the entropy most are left out of the step.

    k_t = 0  for share N tokens, drawn at random from those with low < c_t < high which the
             surrogate's clip has not taken out already, else 1

c is the token's part of the covariance of advantage and log pi over the N tokens of the step
(`update/rules/covariance.py`). Fewer candidates than that: all of them; none: the step is as it
was. At least one token is drawn for. Which ones follows from the run's seed, the iteration and the
step.

arXiv:2505.22617. share = 2e-4, low = 1, high = 5 are those of verl's implementation, which takes c
over a micro-batch, so that the choice depends on how a step is cut; here it does not.
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
    check_share("clip_cov", share)
    if not low < high:
        raise PoiseError(f"clip_cov: low={low:g} must be below high={high:g}")
    if not step.rows:
        return RuleEffect()
    c_N = covariances(step)
    candidates = np.flatnonzero((c_N > low) & (c_N < high) & ~step.clipped)
    if not len(candidates):
        return RuleEffect()
    most = min(num_selected(share, len(c_N)), len(candidates))
    chosen = step.rng("clip_cov").choice(candidates, size=most, replace=False)
    kept_N = np.ones(len(c_N), dtype=np.float32)
    kept_N[chosen] = 0
    ends = np.cumsum([row.num_tokens for row in step.rows])[:-1]
    return RuleEffect(factors=np.split(kept_N, ends), num_chosen=most)
