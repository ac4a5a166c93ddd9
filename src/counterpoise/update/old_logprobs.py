"""Old log-probabilities: which rows need a pass of their own, and when it is made.

    rho_t = pi(o_t) / pi_old(o_t)        pi_old: the policy that sampled the row, by the trainer

While the weights are those that sampled a row, pi_old is pi. So the rows of a batch's first step
take them from the step's own pass: rho is 1, exactly, and its gradient that of log pi. Only what
is trained after the weights have changed must be scored before: the rows of the later steps and
those that stay in the buffer. They are scored just before the first step, so

    a row without scores was sampled by the weights as they are

holds at any time, also for rows that waited in the buffer while no step was taken.

A weighting of tokens that had the rows read in this iteration has made the same pass already: its
log-probabilities are taken. On a GPU in half precision too: what its kernels make of a row does not
depend on the rows beside it. Measured on an H200, bit for bit, over steps of any composer and
length, captured or not. On a CPU it does, so there half precision scores every step in its own
layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.load import Policy
from counterpoise.model.scoring import score_logprobs
from counterpoise.types import BatchPlan, Floats, Row
from counterpoise.update.passes import EAGER, Passes

Scores = Mapping[tuple[str, int], Floats]  # log-probabilities [T] by the names of rows
NO_SCORES: Scores = {}


def first_updating_step(batch: Sequence[Row], plan: BatchPlan) -> int:
    """The first step that changes the weights: those before it have no signal."""
    for s, step in enumerate(plan.steps):
        if any(batch[i].sign for i in step):
            return s
    return 0


def score_before_update(
    policy: Policy,
    batch: Sequence[Row],
    plan: BatchPlan,
    waiting: Sequence[Row],
    temperature: float,
    micro: MicroBatch,
    passes: Passes = EAGER,
    known: Scores = NO_SCORES,
) -> tuple[list[Row], list[Row]]:
    """The batch and the waiting rows, with scores wherever the update would come too soon.

    Every step is scored apart, in the layout of its own pass: rounding then does much the same to
    both sides of a ratio. `known` are scores of rows by the weights as they are.
    """
    half = policy.decoder.dtype in (torch.bfloat16, torch.float16)
    if half and not is_half_on_gpu(policy.decoder.unembedding):
        known = NO_SCORES
    scored_batch = list(batch)
    for step in plan.steps[first_updating_step(batch, plan) + 1 :]:
        rows = [with_known_scores(batch[i], known) for i in step]
        for i, row in zip(
            step, score_missing(policy, rows, temperature, micro, passes), strict=True
        ):
            scored_batch[i] = row
    left = [with_known_scores(row, known) for row in waiting]
    return scored_batch, score_missing(policy, left, temperature, micro, passes)


def with_known_scores(row: Row, known: Scores) -> Row:
    """A row keeps the scores it has."""
    found = known.get(row.name)
    return row if found is None or row.scored_T is not None else replace(row, scored_T=found)


def score_missing(
    policy: Policy,
    rows: Sequence[Row],
    temperature: float,
    micro: int | MicroBatch,
    passes: Passes = EAGER,
) -> list[Row]:
    """The rows, those with signal and without scores scored by the policy as it is."""
    wanted = [i for i, row in enumerate(rows) if row.sign and row.scored_T is None]
    done = list(rows)
    found = score_logprobs(policy, [rows[i] for i in wanted], temperature, micro, passes.read)
    for i, logprobs_T in zip(wanted, found, strict=True):
        done[i] = replace(rows[i], scored_T=logprobs_T)
    return done
