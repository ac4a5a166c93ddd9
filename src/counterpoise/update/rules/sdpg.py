"""SDPG: distil from the policy with the answer in its prompt; stay close to the initial policy.

    D_t = beta(k) m_i KL(p_t || sg[q_t]) + alpha reg(w_t)

    p_t = pi(. | x, o_<t)      q_t = pi(. | c, x, o_<t)      over the vocabulary; c gives the answer
    beta(k) = beta min(1, k / warm) min(1, (K - k) / decay)   iteration k of K
    m_i = 1, or 1[A_i > 0] with right_only
    w_t = pi(o_t) / pi_first(o_t)      pi_first by the weights at the start of the run

    urkl  (log w)^2 / 2    ufkl  1/w + log w    rkl  (log w + 1)^2 / 2    fkl  1/w

With warm = 0 or decay = 0, that factor of beta(k) is 1. The teacher q is the policy before the
step, given the prompt with the hint (`credit/hints.py`) and the response; every pass computes it
for its own rows, without a gradient. With teacher_every = n it is a copy of the policy that is made
anew every n iterations.
A problem without a reference answer has no KL term. alpha > 0 keeps a copy of the initial weights;
alpha = 0 does not.

arXiv:2606.04036. beta = alpha = 1e-3, reg = urkl, warm = decay = 0 and right_only = false are those
of the authors' script. Its runs leave out groups whose rewards are all equal, and so does D: rows
without signal take no part in a pass. Its dual clip at a ratio of 10 is not included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from counterpoise.credit.hints import hinted_prompts, with_teacher
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.model.kl import token_divergences
from counterpoise.model.load import Policy, check_no_logit_softcap
from counterpoise.model.scoring import ForwardOutputs, hidden_states
from counterpoise.model.swapped_weights import states_with_weights
from counterpoise.model.transfer import to_device
from counterpoise.types import Floats, Ints, Row
from counterpoise.update.rules.bind import OptimizerStepView
from counterpoise.update.rules.rule import RuleEffect

RowKey = tuple[str, int]
REGULARISERS: dict[str, Callable[[Tensor], Tensor]] = {
    "urkl": lambda log_w: log_w.square() / 2,
    "ufkl": lambda log_w: (-log_w).exp() + log_w,
    "rkl": lambda log_w: (log_w + 1).square() / 2,
    "fkl": lambda log_w: (-log_w).exp(),
}


@with_teacher
def rule(
    step: OptimizerStepView,
    *,
    beta: float = 1e-3,
    alpha: float = 1e-3,
    reg: str = "urkl",
    warm: int = 0,
    decay: int = 0,
    right_only: bool = False,
) -> RuleEffect:
    """Add the distillation and regularisation terms to the step's loss."""
    if min(beta, alpha, warm, decay) < 0:
        raise PoiseError("sdpg: beta, alpha, warm and decay must be 0 or above")
    if reg not in REGULARISERS:
        raise unknown_name("reg of sdpg", reg, REGULARISERS)
    if not step.rows:
        return RuleEffect()
    reader = step.reader
    assert reader is not None
    current_beta = scheduled_beta(beta, reader.iteration, step.iterations, warm, decay)
    hinted_rows = [
        row
        for row in step.rows
        if current_beta and row.content.answer and (row.sign > 0 or not right_only)
    ]
    initial_logprobs: dict[RowKey, Floats] = {}
    if alpha:
        row_logprobs = zip(step.rows, step.reference_logprobs(), strict=True)
        initial_logprobs = {row.name: logprobs_T for row, logprobs_T in row_logprobs}
    prompts = zip(hinted_rows, hinted_prompts(reader.policy, hinted_rows), strict=True)
    term = TeacherTerm(
        reader.policy,
        reader.temperature,
        current_beta,
        {row.name: prompt for row, prompt in prompts},
        alpha,
        REGULARISERS[reg],
        initial_logprobs,
        reader.teacher,
    )
    return RuleEffect(term=term, num_chosen=sum(row.num_tokens for row in hinted_rows))


def scheduled_beta(beta: float, k: int, K: int, warm: int, decay: int) -> float:
    """beta(k): the strength of the KL term in iteration k of K."""
    rise = min(1.0, k / warm) if warm else 1.0
    fall = min(1.0, (K - k) / decay) if decay else 1.0
    return beta * rise * fall


@dataclass(frozen=True, eq=False)
class TeacherTerm:
    """D for the tokens of a pass."""

    policy: Policy
    temperature: float
    beta: float
    prompts: Mapping[RowKey, Ints]  # with the answer; rows that are missing have no KL term
    alpha: float
    regulariser: Callable[[Tensor], Tensor]
    initial_logprobs: Mapping[RowKey, Floats]  # by the initial weights; empty where alpha is 0
    teacher: Mapping[str, Tensor] | None = None  # its weights by name; None: the policy itself

    def __call__(
        self, rows: Sequence[Row], forward: ForwardOutputs, old_logprobs_M: Tensor
    ) -> Tensor:
        term_M = torch.zeros_like(forward.logprobs_M)
        if self.alpha:
            initial_logprobs = np.concatenate([self.initial_logprobs[row.name] for row in rows])
            initial_M = to_device(initial_logprobs, old_logprobs_M.device, np.float32)
            term_M = term_M + self.alpha * self.regulariser(forward.logprobs_M - initial_M)
        hinted_rows = [row for row in rows if row.name in self.prompts]
        if not hinted_rows:
            return term_M
        check_no_logit_softcap(self.policy, "credit.rule=sdpg")
        teacher_rows = [self._with_hinted_prompt(row) for row in hinted_rows]
        teacher_unembedding = None
        if self.teacher is None:
            # The teacher has the current weights, so it changes from step to step.
            teacher_states = hidden_states(self.policy, teacher_rows)
        else:
            teacher_states, teacher_unembedding = states_with_weights(
                self.policy, self.teacher, teacher_rows
            )
        is_hinted = np.concatenate(
            [np.full(row.num_tokens, row.name in self.prompts) for row in rows]
        )
        hinted_tokens = to_device(np.flatnonzero(is_hinted), old_logprobs_M.device, np.int64)
        divergences = token_divergences(
            forward.hidden_M[hinted_tokens],
            teacher_states,
            self.policy.decoder.unembedding,
            self.temperature,
            teacher_unembedding,
        )
        return term_M.index_add(0, hinted_tokens, self.beta * divergences)

    def _with_hinted_prompt(self, row: Row) -> Row:
        return replace(row, rollout=replace(row.content, prompt_tokens=self.prompts[row.name]))
