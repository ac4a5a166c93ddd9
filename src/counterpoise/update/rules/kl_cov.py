"""KL-Cov: penalise drift of the tokens that lower the entropy most, instead of clipping all tokens.

    D_t = strength |log pi(o_t) - log pi_old(o_t)|  for the share * N tokens of largest c_t, else 0

on top of -rho_t A_t without a clip (`update.surrogate = "unclipped"`). c is the token's part of the
covariance of advantage and log pi over the N tokens of the step (`update/rules/covariance.py`); at
least one token is chosen. Where pi is pi_old for all rows, as in a batch's first step, D is 0 and
its slope is taken as 0, so no token is chosen.

arXiv:2505.22617. share = 2e-4 is that of verl's implementation, strength = 1 of its scripts. verl
computes c over a micro-batch; here it is over the step, however that is cut into micro-batches.
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
    """Add the penalty on the chosen tokens to the step's loss."""
    check_share("kl_cov", share)
    if strength < 0:
        raise PoiseError(f"kl_cov: strength must be 0 or above, not {strength:g}")
    # Also true without rows.
    if all(step.on_policy and row.trainer_logprobs_T is None for row in step.rows):
        return RuleEffect()
    covariance_N = covariances(step)
    num_penalised = num_selected(share, len(covariance_N))
    strengths_N = np.zeros(len(covariance_N), dtype=np.float32)
    # A stable sort breaks ties by position: the choice does not depend on the platform.
    strengths_N[np.argsort(-covariance_N, kind="stable")[:num_penalised]] = strength
    row_strengths = zip(step.rows, step.split_by_row(strengths_N), strict=True)
    return RuleEffect(
        term=DriftPenalty({row.name: strengths_T for row, strengths_T in row_strengths}),
        num_chosen=num_penalised,
    )


@dataclass(frozen=True, eq=False)
class DriftPenalty:
    """D for the tokens of a pass."""

    strengths: Mapping[tuple[str, int], Floats]  # per row [T]

    def __call__(
        self, rows: Sequence[Row], forward: ForwardOutputs, old_logprobs_M: Tensor
    ) -> Tensor:
        row_strengths = np.concatenate([self.strengths[row.name] for row in rows])
        strengths_M = to_device(row_strengths, old_logprobs_M.device, np.float32)
        return strengths_M * (forward.logprobs_M - old_logprobs_M).abs()
