"""Old log-probabilities: which rows need a pass of their own, and when it is made.

    rho_t = pi(o_t) / pi_old(o_t)        pi_old: the policy that sampled the row

Both are computed by the trainer. While the weights are those that sampled a row, pi_old is pi. So
the rows of a batch's first step take their old log-probabilities from the step's own pass: rho is
exactly 1, and its gradient that of log pi. Only rows that are trained after the weights have
changed must be scored before: those of the later steps and those that stay in the buffer. They are
scored just before the first step, and their scores (log-probabilities, not rewards) stay with them
as `trainer_logprobs_T`. It follows that, at any time,

    a row without trainer_logprobs_T was sampled by the current weights,

also if it waited in the buffer: it would have been scored before a step taken meanwhile.

If a token weighting has read the rows in this iteration, it has made the same pass already, and its
log-probabilities are reused. This includes half precision on a GPU, where the result for a row does
not depend on the other rows of the pass (measured on an H200, bit for bit, over steps of any
composer and length, captured or not). On a CPU it does depend on them, so there half-precision
log-probabilities are not reused: every step is scored in its own layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from counterpoise.credit.view import PolicyReader
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.load import Policy
from counterpoise.model.reading_passes import EAGER_READING, ReadingPasses
from counterpoise.model.scoring import score_logprobs
from counterpoise.types import BatchPlan, Floats, Row

Scores = Mapping[tuple[str, int], Floats]  # log-probabilities [T] by the names of rows
NO_SCORES: Scores = {}


def first_updating_step(batch: Sequence[Row], plan: BatchPlan, *, all_rows: bool = False) -> int:
    """The index of the first step that changes the weights: earlier ones have no loss.

    `all_rows`: rows without an advantage have a loss too, as with a KL or an entropy bonus
    (`UpdateConfig.trains_all_rows`). It means the same in all functions of this file.
    """
    for step_index, step in enumerate(plan.steps):
        if any(batch[i].has_loss(all_rows=all_rows) for i in step):
            return step_index
    return 0


def score_before_update(
    reader: PolicyReader,
    batch: Sequence[Row],
    plan: BatchPlan,
    waiting: Sequence[Row],
    *,
    all_rows: bool = False,
) -> tuple[list[Row], list[Row]]:
    """The batch and the waiting rows; those trained after the weights change get their scores now.

    Every step is scored separately, in the layout of its own pass, so that rounding affects both
    sides of a ratio in much the same way. `reader.scores` are log-probabilities that a token
    weighting has already computed by the current weights.
    """
    decoder = reader.policy.decoder
    # On a CPU, half precision rounds a row differently beside other rows: no reuse there.
    is_half = decoder.dtype in (torch.bfloat16, torch.float16)
    can_reuse = not is_half or is_half_on_gpu(decoder.unembedding)
    known_scores = reader.scores if can_reuse else NO_SCORES

    def score_rows(rows: Sequence[Row]) -> list[Row]:
        rows = [with_known_scores(row, known_scores) for row in rows]
        return score_missing(
            reader.policy,
            rows,
            reader.temperature,
            reader.micro_batch,
            reader.passes,
            all_rows=all_rows,
        )

    # The rows of the first updating step are scored by the step's own pass.
    scored_batch = list(batch)
    first_updating = first_updating_step(batch, plan, all_rows=all_rows)
    for step in plan.steps[first_updating + 1 :]:
        for i, row in zip(step, score_rows([batch[i] for i in step]), strict=True):
            scored_batch[i] = row
    return scored_batch, score_rows(waiting)


def with_known_scores(row: Row, known_scores: Scores) -> Row:
    """The row with its known scores; a row that already has scores keeps its own."""
    scores_T = known_scores.get(row.name)
    if scores_T is None or row.trainer_logprobs_T is not None:
        return row
    return replace(row, trainer_logprobs_T=scores_T)


def score_missing(
    policy: Policy,
    rows: Sequence[Row],
    temperature: float,
    micro_batch: int | FittedSize,
    passes: ReadingPasses = EAGER_READING,
    *,
    all_rows: bool = False,
) -> list[Row]:
    """The rows; those with a loss and without scores are scored by the current policy."""
    unscored_indices = [
        i
        for i, row in enumerate(rows)
        if row.has_loss(all_rows=all_rows) and row.trainer_logprobs_T is None
    ]
    scored_rows = list(rows)
    logprobs = score_logprobs(
        policy, [rows[i] for i in unscored_indices], temperature, micro_batch, passes.read
    )
    for i, logprobs_T in zip(unscored_indices, logprobs, strict=True):
        scored_rows[i] = replace(rows[i], trainer_logprobs_T=logprobs_T)
    return scored_rows
