"""Simple composers: what other frameworks do, and a control that separates the signs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from counterpoise.batch.partition import partition
from counterpoise.errors import PoiseError
from counterpoise.types import Row


def whole(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """All rows in one step: nothing is split, and the update is strictly on-policy."""
    if num_steps != 1:
        raise PoiseError(
            f"composer 'whole' makes one step, not {num_steps}: "
            "set batch.steps (poise plan: --steps) to 1 or choose another composer"
        )
    return [list(range(len(rows)))]


def shuffled(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """A random permutation of the rows, cut into equal steps, as TRL does with several steps.

    Groups are cut apart: with k steps a row's group mate shares its step with probability about
    1/k.
    """
    random_order = np.random.default_rng(seed).permutation(len(rows))
    return [step.tolist() for step in np.array_split(random_order, num_steps)]


def token_balanced(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Steps of equal token count and equal row count (give or take one), ignoring groups.

    Karmarkar-Karp over the rows: how the paper describes verl, whose mini-batches are cut by token
    count. It is optimal for throughput, and it scatters a group over the steps like a shuffle.
    """
    token_loads = [row.num_tokens for row in rows]
    steps = partition(token_loads, num_steps, np.random.default_rng(seed))
    return [sorted(step) for step in steps]


def zigzag(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """order = s_0 s_2 s_4 ... s_5 s_3 s_1 with s the rows by length, cut into equal steps.

    verl v0.6.1 to v0.8.0 order each rank's rows this way, to put short micro-batches at both ends
    of a pipeline, and then cut mini-batches from that order. With four steps or more the first and
    the last update see only short rollouts and the middle ones only long, hence mostly right or
    mostly wrong ones. This is the order of a single rank. verl sorts by 24576 L + L^2, which is the
    order of the lengths L; equal lengths keep their order. L is the response's length here, prompt
    plus response in verl, so prompts of uneven length give other steps there. Nothing is random:
    the seed is not used.
    """
    by_length = np.argsort([row.num_tokens for row in rows], kind="stable")
    zigzag_order = np.concatenate([by_length[::2], by_length[1::2][::-1]])
    return [step.tolist() for step in np.array_split(zigzag_order, num_steps)]


def by_sign(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Positive and negative rows in separate steps: Fig. 7a's control without cancellation.

    The positive rows get round(k * N+ / (N+ + N-)) of the k steps, and each sign at least one; each
    sign's rows are shuffled and cut equally. If all rows with signal have one sign, it gets every
    step. Rows without signal (A = 0) have no gradient and only count in a step's denominator: one
    by one they go to the step with the fewest rows. With fewer rows with signal than steps, the
    remaining steps hold only rows without signal: a saturated iteration must not end a run. The
    order of the steps is random.
    """
    rng = np.random.default_rng(seed)
    sign_R = np.array([row.sign for row in rows])
    positive_rows, negative_rows, rows_without_signal = (
        rng.permutation(np.flatnonzero(sign_R == sign)) for sign in (1, -1, 0)
    )
    num_positive_steps = _steps_for_positive(len(positive_rows), len(negative_rows), num_steps)
    steps: list[list[int]] = []
    for sign_rows, num_sign_steps in (
        (positive_rows, num_positive_steps),
        (negative_rows, num_steps - num_positive_steps),
    ):
        if num_sign_steps:
            steps += [step.tolist() for step in np.array_split(sign_rows, num_sign_steps)]
    step_sizes = [(len(step), step_number) for step_number, step in enumerate(steps)]
    # Rows without signal only fill up: each goes to the step that has the fewest rows so far.
    heapq.heapify(step_sizes)
    for row_index in rows_without_signal.tolist():
        smallest_size, step_number = step_sizes[0]
        steps[step_number].append(row_index)
        heapq.heapreplace(step_sizes, (smallest_size + 1, step_number))
    return [steps[step_number] for step_number in rng.permutation(num_steps)]


def _steps_for_positive(positive: int, negative: int, num_steps: int) -> int:
    if positive == 0 or negative == 0:
        return num_steps if positive else 0
    if num_steps == 1:
        raise PoiseError(
            "one step cannot separate positive and negative rows: raise batch.steps (poise plan: "
            "--steps) to 2 or more"
        )
    num_positive_steps = round(num_steps * positive / (positive + negative))
    return min(max(num_positive_steps, 1), num_steps - 1)


def find_mixed_signs(rows: Sequence[Row], steps: Sequence[Sequence[int]]) -> str:
    """Describe the first step that holds rows of both signs; empty if there is none."""
    for step_number, step in enumerate(steps):
        if {1, -1} <= {rows[row_index].sign for row_index in step}:
            return f"step {step_number} holds rows of both signs"
    return ""
