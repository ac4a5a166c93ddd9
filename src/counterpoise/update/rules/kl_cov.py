"""KL-Cov: the tokens that lower the entropy most are held back, in place of a clip on all.

    D_t = strength |log pi(o_t) - log pi_old(o_t)|  for the share N tokens of largest c_t, else 0

on top of -rho_t A_t without a clip (`update.surrogate = "unclipped"`). c is the token's part of the
covariance of advantage and log pi over the N tokens of the step (`update/rules/covariance.py`); at
least one token is chosen. Where pi is pi_old for all rows, as in a batch's first step, D is 0 and
its slope is taken as 0: nothing is chosen there.

arXiv:2505.22617. share = 2e-4 is that of verl's implementation, strength = 1 of its scripts. There
c is taken over a micro-batch; here over the step, so that cutting it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.model.scoring import ForwardOutputs
from counterpoise.model.transfer import to_device
from counterpoise.types import Floats, Row
from counterpoise.update.rules.bind import OptimizerStepView
from counterpoise.update.rules.covariance import check_share, covariances, num_selected
from counterpoise.update.rules.rule import RuleEffect


def rule(step: OptimizerStepView, *, share: float = 2e-4, strength: float = 1.0) -> RuleEffect:
    check_share("kl_cov", share)
    if strength < 0:
        raise PoiseError(f"kl_cov: strength is 0 or above, not {strength:g}")
    if all(step.on_policy and row.scored_T is None for row in step.rows):
        return RuleEffect()
    c_N = covariances(step)
    most = num_selected(share, len(c_N))
    strengths_N = np.zeros(len(c_N), dtype=np.float32)
    strengths_N[np.argsort(-c_N, kind="stable")[:most]] = strength
    ends = np.cumsum([row.num_tokens for row in step.rows])[:-1]
    parts = zip(step.rows, np.split(strengths_N, ends), strict=True)
    return RuleEffect(term=DriftPenalty({row.name: of_T for row, of_T in parts}), num_chosen=most)


@dataclass(frozen=True, eq=False)
class DriftPenalty:
    """D for the tokens of a pass."""

    strengths: Mapping[tuple[str, int], Floats]  # per row [T]

    def __call__(self, rows: Sequence[Row], found: ForwardOutputs, old_M: Tensor) -> Tensor:
        strengths = np.concatenate([self.strengths[row.name] for row in rows])
        weights_M = to_device(strengths, old_M.device, np.float32)
        return weights_M * (found.logprobs_M - old_M).abs()
