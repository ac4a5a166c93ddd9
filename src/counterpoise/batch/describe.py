"""What a plan does to groups, signs and loads, in numbers that go to `plans.jsonl`.

    S_B      = sum of A_i over the part B of a group that shares a step
    cross    = sum_{i != j in B} A_i A_j = S_B^2 - sum_B A_i^2                        (eq. 14)

Summed over the groups of a step, cross is most negative when every S_B is 0: whole groups. It
rises with each group that is cut, and turns positive when parts hold one sign only.

    cross_advantage_ratio = sum of cross / sum of A_i^2, both over the whole plan

It does not depend on the batch's size. Where the advantages of a group sum to zero, it is -1 when
every group is whole and 0 when no two rows of a group share a step. It is largest when a group's
positive rows share one step and its negative rows another: 2 p n / (p + n) - 1 for p positive and n
negative rows of two-valued rewards, so at most G/2 - 1. Only advantages that do not sum to zero
come nearer to G - 1, the value of a whole group with equal advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from counterpoise.batch.compose import find_partition_fault
from counterpoise.errors import PoiseError
from counterpoise.store.schema import PLAN_METRICS
from counterpoise.types import BatchPlan, Ints, Row, number_groups


class PlanDescription(TypedDict):
    """Plain numbers and lists (one entry per step), ready for `json.dumps`. None: not defined."""

    rows: int
    groups: int
    rows_without_signal: int  # advantage 0
    split_groups: int  # groups with rows in more than one step
    split_share: float  # of all groups
    token_imbalance: float  # heaviest step over mean
    positive_share: float | None  # of the rows with signal
    positive_share_per_step: list[float | None]
    max_abs_group_advantage_sum: float  # max |S_B| over steps and groups; 0: each part cancels
    cross_advantage_sum: list[float]  # sum of cross over the step's groups
    cross_advantage_ratio: float | None  # -1: each part cancels; None: no row has signal
    tokens_per_step: list[int]
    rows_per_step: list[int]
    shared_token_share: float | None
    """The share of token types in a step's positive rows that its negative rows have too: mean
    over the steps with positive rows; None where rows carry no tokens."""


def describe_plan(rows: Sequence[Row], plan: BatchPlan) -> PlanDescription:
    """Say in numbers what a plan does to groups, signs and token loads.

    Arguments:
        rows    [R], those that the plan was composed for
        plan    a partition of the rows, by `compose` or by hand

    Example:
        >>> rows = [Row(group=g, advantage=a, num_tokens=9) for g in "xy" for a in (1.0, -1.0)]
        >>> by_hand = BatchPlan("by hand", ((0, 1), (2, 3)))
        >>> describe_plan(rows, by_hand)["cross_advantage_ratio"]  # -1: every group is whole
        -1.0
    """
    if not rows:
        raise PoiseError("rows is empty: there is no plan to describe")
    if fault := find_partition_fault(len(rows), plan, len(plan.steps)):
        raise PoiseError(f"the plan does not fit the rows: {fault}")
    step_R = np.empty(len(rows), dtype=np.int64)
    for step_number, step in enumerate(plan.steps):
        step_R[list(step)] = step_number
    group_of_row, group_names = number_groups(rows)
    group_R = np.array(group_of_row)
    A_R = np.array([row.advantage for row in rows], dtype=np.float64)
    tokens_R = np.array([row.num_tokens for row in rows], dtype=np.int64)

    num_steps, num_groups = len(plan.steps), len(group_names)
    # A cell is the part of one group in one step; only cells that hold rows exist.
    cell_B, cell_R = np.unique(step_R * num_groups + group_R, return_inverse=True)
    S_B = np.bincount(cell_R, weights=A_R)
    # cross = S_B^2 - sum of squares, summed per step without forming any pair of rows.
    squares_per_step = np.bincount(step_R, weights=A_R**2, minlength=num_steps)
    cross_per_step = (
        np.bincount(cell_B // num_groups, weights=S_B**2, minlength=num_steps) - squares_per_step
    )
    num_split_groups = int((np.bincount(cell_B % num_groups) > 1).sum())
    tokens_per_step = np.bincount(step_R, weights=tokens_R, minlength=num_steps)
    return {
        "rows": len(rows),
        "groups": num_groups,
        "rows_without_signal": int((A_R == 0).sum()),
        "split_groups": num_split_groups,
        "split_share": num_split_groups / num_groups,
        "token_imbalance": float(tokens_per_step.max() / tokens_per_step.mean()),
        "positive_share": _positive_share(A_R),
        "positive_share_per_step": [
            _positive_share(A_R[step_R == step_number]) for step_number in range(num_steps)
        ],
        "max_abs_group_advantage_sum": float(np.abs(S_B).max()),
        "cross_advantage_sum": cross_per_step.tolist(),
        "cross_advantage_ratio": float(cross_per_step.sum() / squares_per_step.sum())
        if squares_per_step.any()
        else None,
        "tokens_per_step": tokens_per_step.astype(int).tolist(),
        "rows_per_step": [len(step) for step in plan.steps],
        "shared_token_share": _shared_token_share(rows, plan),
    }


def plan_record(
    iteration: int, rows: Sequence[Row], plan: BatchPlan, description: PlanDescription | None
) -> dict[str, Any]:
    """What a chart of the plan needs: every row's group, advantage and length, and the steps.

    The names of fields are fixed by older run folders: `rule` is the composer, `groups` has the
    names of groups, and `group` has for each row an index into them.
    """
    group_numbers, group_names = number_groups(rows)
    return {
        "iteration": iteration,
        "rule": plan.composer,
        "steps": [list(step) for step in plan.steps],
        "group": group_numbers,
        "groups": group_names,
        "index": [row.index for row in rows],
        "advantage": [row.advantage for row in rows],
        "tokens": [row.num_tokens for row in rows],
        "born": [row.born for row in rows],
        "describe": description,
    }


def plan_metrics(description: PlanDescription | None) -> dict[str, Any]:
    """The numbers of a plan that go to metrics.jsonl; None where nothing was updated."""
    if description is None:
        return dict.fromkeys(PLAN_METRICS)
    numbers: dict[str, Any] = {**description}
    return {name: numbers[name] for name in PLAN_METRICS}


def _positive_share(A_R: NDArray[np.float64]) -> float | None:
    """Share of positive rows among those with signal; None if there are none."""
    num_with_signal = int((A_R != 0).sum())
    return int((A_R > 0).sum()) / num_with_signal if num_with_signal else None


def _shared_token_share(rows: Sequence[Row], plan: BatchPlan) -> float | None:
    """How much of the positive rows' vocabulary negative rows share, as `PlanDescription` says."""
    if any(row.rollout is None for row in rows):
        return None
    shares = []
    for step in plan.steps:
        in_positive = _occurring_tokens(
            [
                rows[row_index].content.response_tokens
                for row_index in step
                if rows[row_index].sign > 0
            ]
        )
        in_negative = _occurring_tokens(
            [
                rows[row_index].content.response_tokens
                for row_index in step
                if rows[row_index].sign < 0
            ]
        )
        common_length = min(len(in_positive), len(in_negative))
        if in_positive.any():
            num_shared = int((in_positive[:common_length] & in_negative[:common_length]).sum())
            shares.append(num_shared / int(in_positive.sum()))
    return sum(shares) / len(shares) if shares else None


def _occurring_tokens(responses: Sequence[Ints]) -> NDArray[np.bool_]:
    """For each token id up to the largest one: whether it occurs in the responses."""
    tokens = np.concatenate(responses) if responses else np.empty(0, np.int32)
    occurs = np.zeros(int(tokens.max(initial=-1)) + 1, dtype=bool)
    occurs[tokens] = True
    return occurs
