"""Follows held-out answers, the probes, through the optimizer steps of an iteration.

The steps hand over the hidden states and loss weights that they computed. After the last of them,
one forward pass over the probe answers gives their real displacement, and the push of every trained
token on them is summed (`heldout_pushes.py`):

    displacement_j = log p_after(j) - log p_before(j)        at the temperature of sampling

The pass after an iteration is also the pass before the next, so n iterations in a row need n + 1
passes. The hidden states of the probes are those before the first step, and residuals are taken
with the output layer after the last one: both are a few optimizer steps away from the weights at
which a gradient was computed, which is little beside what the output layer misses.

Pushes are for one unit of learning rate. They are exact to first order for gradient descent on the
output layer; the other layers, and what AdamW makes of the gradient (its scale by entry, and the
momentum of earlier steps), are in the displacement only. On request the influence of every row is
computed through other layers too, at the weights before its step (`gradient_products.py`).
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
from counterpoise.microscope.gradient_products import GradientSettings, gradient_products
from counterpoise.microscope.heldout_pushes import HeldoutPushes, StrongestTokens
from counterpoise.microscope.stopwatch import Stopwatch
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.model.scoring import TokenScores, score_tokens
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.passes import EAGER, Passes

STEER = "steer"
HALVES = (STEER, "judge")
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
    """What the optimizer steps of one iteration did to the probes; everything on the CPU.

    J counts the probe tokens, answer after answer; R the trained rows, step after step; N their
    tokens.
    """

    steps: tuple[int, ...]  # [R], the step of each row, as an index in the plan
    rows: tuple[int, ...]  # [R], indices of the rows given to their step, not of the batch
    logprobs: Floats  # [J], before the first step
    displacement: Floats  # [J]
    signed_J2: Floats  # push of tokens with a positive and with a negative pull
    same_token_J2: Floats  # the part of it that equal tokens cause
    by_row_RQ: Floats
    gradient_RQ: Floats | None  # the same by gradients of other parameters; None: not asked for
    on_sets_NC: Floats  # push of a trained token on an answer, mean over each of ANSWER_SETS
    strongest: StrongestTokens  # `rows` are indices into `rows` above

    @property
    def influence_RQ(self) -> Floats:
        """The influence of every row on every answer: by gradients where they were asked for."""
        return self.by_row_RQ if self.gradient_RQ is None else self.gradient_RQ


class TrainedRow(NamedTuple):
    """A row as its optimizer step used it."""

    step: int
    row: int  # index among the rows given to the step
    tokens: NDArray[np.int32]  # [T]
    pulls: Floats  # [T]
    hidden: Tensor  # [T, D]
    products_Q: Floats | None = None  # influence on every answer, by gradients


class ProbeMonitor:
    """Measures the probes around the steps of one iteration.

    Example:
        monitor = ProbeMonitor(answers, temperature=1.0, micro_tokens=8192)
        take_step(..., observer=monitor.at(0))
        take_step(..., observer=monitor.at(1))
        monitor.finish(policy).displacement
    """

    def __init__(
        self,
        answers: Sequence[ProbeAnswer],
        temperature: float,
        micro_tokens: int | FittedSize,
        passes: Passes = EAGER,
        reading: TokenScores | None = None,  # under the current weights, if known
        gradients: GradientSettings | None = None,  # None: through the output layer alone
    ) -> None:
        self.answers = answers
        self.rows = [answer.row for answer in answers]
        self.temperature, self.micro_tokens, self.passes = temperature, micro_tokens, passes
        self.reading = reading
        self.gradients = gradients
        self.stopwatch = Stopwatch()
        self._step = 0
        self._trained: list[TrainedRow] = []

    def at(self, step: int) -> ProbeMonitor:
        self._step = step
        return self

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        """Keep what the step computed; read the probes before the first step."""
        with self.stopwatch.running(policy.device):
            if self.reading is None:
                self.reading = self._read(policy)
            products_RQ = self._products(policy, [rows[i] for i in result.rows], result.pulls)
        self._trained += [
            TrainedRow(
                self._step, index, rows[index].content.response_tokens, pulls, hidden, products_Q
            )
            for index, pulls, hidden, products_Q in zip(
                result.rows, result.pulls, result.hidden, products_RQ, strict=True
            )
        ]

    def after_update(self, policy: Policy) -> None:
        """Nothing: the probes are read again after the last step only."""

    def forget_step(self, step: int) -> None:
        """Leave a step out that the optimizer skipped after all: it moved nothing."""
        self._trained = [row for row in self._trained if row.step != step]

    def finish(self, policy: Policy) -> ProbeMeasurement | None:
        """Measure what the steps did; None if no step was taken. `reading` is then the new one.

        After an error, such as running out of memory, it can be called again.
        """
        if not self._trained:
            return None
        assert self.reading is not None, "before_update() has read the probes"
        with self.stopwatch.running(policy.device):
            after = self._read(policy)
            measurement = self._measure(policy, self._trained, self.reading, after)
        self.reading, self._trained = after, []
        return measurement

    def _products(
        self, policy: Policy, rows: Sequence[Row], pulls: Sequence[Floats]
    ) -> Sequence[Floats | None]:
        """The influence of every row by gradients [R, Q], if it was asked for."""
        if self.gradients is None:
            return [None] * len(rows)
        products_RQ = gradient_products(policy, rows, pulls, self.rows, self.gradients)
        return list(products_RQ.astype(np.float32))

    def _read(self, policy: Policy) -> TokenScores:
        return score_tokens(
            policy, self.rows, self.temperature, self.micro_tokens, self.passes.read
        )

    @torch.no_grad()
    def _measure(
        self,
        policy: Policy,
        trained: Sequence[TrainedRow],
        before: TokenScores,
        after: TokenScores,
    ) -> ProbeMeasurement:
        trained_tokens = [row.tokens for row in trained]
        probe_tokens = [row.content.response_tokens for row in self.rows]
        tokens = _concatenate([*trained_tokens, *probe_tokens]).long()
        hidden = torch.cat([*(row.hidden for row in trained), *before.hidden])
        pushes = HeldoutPushes(
            policy_residuals(policy, hidden, tokens, self.temperature),
            _concatenate([row.pulls for row in trained]),
            [len(tokens_T) for tokens_T in trained_tokens],
            [len(tokens_T) for tokens_T in probe_tokens],
            scale=1 / self.temperature**2,
        )
        sums = pushes.sums(answer_sets(self.answers))
        by_row_RQ = sums.by_row_RQ.float().cpu().numpy()
        products = [row.products_Q for row in trained if row.products_Q is not None]
        gradient_RQ = np.stack(products) if products else None
        right_answers = [index for index, answer in enumerate(self.answers) if answer.right]
        logprobs = np.concatenate(before.logprobs)
        return ProbeMeasurement(
            steps=tuple(row.step for row in trained),
            rows=tuple(row.row for row in trained),
            logprobs=logprobs,
            displacement=np.concatenate(after.logprobs) - logprobs,
            signed_J2=sums.signed_J2.float().cpu().numpy(),
            same_token_J2=sums.same_token_J2.float().cpu().numpy(),
            by_row_RQ=by_row_RQ,
            gradient_RQ=gradient_RQ,
            on_sets_NC=sums.on_sets_NC.float().cpu().numpy(),
            strongest=pushes.strongest_tokens(
                by_row_RQ if gradient_RQ is None else gradient_RQ, right_answers
            ),
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
