"""Follows held-out answers, the probes, through every optimizer step of an iteration.

Before a step, the push of its tokens on every probe token is summed (`heldout_pushes.py`), from the
hidden states and loss weights that the step itself computed. After it, one forward pass over the
probe answers gives their real displacement:

    displacement_j = log p_after(j) - log p_before(j)        at the temperature of sampling

The pass after a step is also the pass before the next one, so n steps in a row need n + 1 passes.
Pushes are for one unit of learning rate. They are exact to first order for gradient descent on the
output layer; the other layers, and what AdamW makes of the gradient (its scale by entry, and the
momentum of earlier steps), are in the displacement only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.microscope.batch_tokens import policy_residuals
from counterpoise.microscope.heldout_pushes import HeldoutPushes, StrongestTokens
from counterpoise.microscope.stopwatch import Stopwatch
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.load import Policy
from counterpoise.model.scoring import TokenScores, score_tokens
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.passes import EAGER, Passes

HALVES = ("steer", "judge")
ANSWER_SETS = tuple((kind, half) for kind in ("right", "wrong") for half in HALVES)


class ProbeAnswer(NamedTuple):
    """A held-out answer that is followed.

    Example:
        ProbeAnswer(row, half="judge")      row.group is the problem, row.born when it was drawn
    """

    row: Row
    half: str  # one of HALVES: what may steer training, and what only judges it

    @property
    def problem(self) -> str:
        return self.row.group

    @property
    def right(self) -> bool:
        return self.row.content.reward > 0

    @property
    def kind(self) -> str:
        return "right" if self.right else "wrong"


class ProbeReading(NamedTuple):
    """The probe answers as the weights after `iteration` finished iterations see them."""

    iteration: int
    scores: TokenScores


@dataclass(frozen=True, slots=True, eq=False)
class ProbeMeasurement:
    """What one optimizer step did to the probes; everything on the CPU.

    J counts the probe tokens, answer after answer; N the trained tokens of the step, in the order
    of `rows`.
    """

    step: int  # index in the plan
    rows: tuple[int, ...]  # as StepResult.rows
    logprobs: Floats  # [J], before the step
    displacement: Floats  # [J]
    signed_J2: Floats  # push of tokens with a positive and with a negative pull
    same_token_J2: Floats  # the part of it that equal tokens cause
    by_row_RQ: Floats
    on_sets_NC: Floats  # push of a trained token on the mean answer of each of ANSWER_SETS
    strongest: StrongestTokens  # `rows` are indices into `rows` above


class ProbeMonitor:
    """Measures the probes around the steps of one iteration."""

    def __init__(
        self,
        answers: Sequence[ProbeAnswer],
        temperature: float,
        micro_tokens: int | MicroBatch,
        passes: Passes = EAGER,
        reading: TokenScores | None = None,  # under the current weights, if known
    ) -> None:
        self.answers = answers
        self.rows = [answer.row for answer in answers]
        self.temperature, self.micro_tokens, self.passes = temperature, micro_tokens, passes
        self.reading = reading
        self.measurements: list[ProbeMeasurement] = []
        self.stopwatch = Stopwatch()
        self._step = 0
        self._pending: ProbeMeasurement | None = None

    def at(self, step: int) -> ProbeMonitor:
        self._step = step
        return self

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        """Sum the pushes with the weights at which the gradient was computed."""
        with self.stopwatch.running(policy.device):
            if self.reading is None:
                self.reading = self._read(policy)
            self._pending = self._sum_pushes(policy, [rows[i] for i in result.rows], result)

    def after_update(self, policy: Policy) -> None:
        """Measure the displacement: the same pass over the same rows as before the step."""
        assert self._pending is not None, "before_update() comes first"
        with self.stopwatch.running(policy.device):
            pending, self._pending = self._pending, None
            self.reading = self._read(policy)
            logprobs = np.concatenate(self.reading.logprobs)
            self.measurements.append(
                ProbeMeasurement(
                    step=pending.step,
                    rows=pending.rows,
                    logprobs=pending.logprobs,
                    displacement=logprobs - pending.logprobs,
                    signed_J2=pending.signed_J2,
                    same_token_J2=pending.same_token_J2,
                    by_row_RQ=pending.by_row_RQ,
                    on_sets_NC=pending.on_sets_NC,
                    strongest=pending.strongest,
                )
            )

    def _read(self, policy: Policy) -> TokenScores:
        return score_tokens(
            policy, self.rows, self.temperature, self.micro_tokens, self.passes.read
        )

    @torch.no_grad()
    def _sum_pushes(
        self, policy: Policy, step_rows: Sequence[Row], result: StepResult
    ) -> ProbeMeasurement:
        assert self.reading is not None
        trained_tokens = [row.content.response_tokens for row in step_rows]
        probe_tokens = [row.content.response_tokens for row in self.rows]
        tokens = _concatenate([*trained_tokens, *probe_tokens]).long()
        hidden = torch.cat([*result.hidden, *self.reading.hidden])
        pushes = HeldoutPushes(
            policy_residuals(policy, hidden, tokens, self.temperature),
            _concatenate(result.pulls),
            [len(tokens_T) for tokens_T in trained_tokens],
            [len(tokens_T) for tokens_T in probe_tokens],
            scale=1 / self.temperature**2,
        )
        sums = pushes.sums(answer_sets(self.answers))
        by_row_RQ = sums.by_row_RQ.float().cpu().numpy()
        right_answers = [index for index, answer in enumerate(self.answers) if answer.right]
        return ProbeMeasurement(
            step=self._step,
            rows=result.rows,
            logprobs=np.concatenate(self.reading.logprobs),
            displacement=np.empty(0, np.float32),  # not known yet
            signed_J2=sums.signed_J2.float().cpu().numpy(),
            same_token_J2=sums.same_token_J2.float().cpu().numpy(),
            by_row_RQ=by_row_RQ,
            on_sets_NC=sums.on_sets_NC.float().cpu().numpy(),
            strongest=pushes.strongest_tokens(by_row_RQ, right_answers),
        )


def answer_sets(answers: Sequence[ProbeAnswer]) -> list[list[int]]:
    """The answers of each of ANSWER_SETS."""
    return [
        [
            index
            for index, answer in enumerate(answers)
            if (answer.kind, answer.half) == (kind, half)
        ]
        for kind, half in ANSWER_SETS
    ]


def _concatenate(arrays: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays))
