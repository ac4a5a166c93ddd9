"""Weights of whole rollouts under which the shared content of a group cancels again (DFPO).

    w_i = exp(mean_t log rho_{i,t})        rho = pi / pi_old, pi: the policy before the step

    min_replace    w~_i = min_j w_j                       sum_i A_i w~_i = w~ sum_i A_i = 0
    orthogonal     w~   = w - (A . w / |A|^2) A           sum_i A_i w~_i = 0
    off            w~_i = 1

over the rollouts of a group in the step. A sequence ratio weights each rollout differently, and a
clip cuts off one sign: both leave a residual on the tokens that right and wrong rollouts share. The
loss that avoids both is L = -sum_i c A_i w~_i sum_t log pi(o_t), with one c for all rollouts, so
these weights require `update.surrogate = "reinforce"`, which has neither ratio nor clip, and
`update.aggregate = "token_mean"` or `"constant"`. No gradient flows through w~. At a batch's first
step the ratios of rows that the current policy sampled are 1; rows that waited in the buffer
through an update have ratios of their own.

min_replace needs a group whose advantages sum to 0, whole in its step (QB). orthogonal does not,
but can give a rollout a negative weight; setting those to 0 would bring the residual back.

arXiv:2604.13088, "T1" and "T2", implemented from readers' notes on the paper. It allows two ratios;
this is the length-normalised one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from counterpoise.types import Floats, Row, rows_by_group
from counterpoise.variants import TRAJECTORY_WEIGHTS

Doubles = NDArray[np.float64]


def off(ratios_G: Doubles, advantages_G: Doubles) -> Doubles:
    """No reweighting: w~ = 1."""
    return np.ones_like(ratios_G)


def min_replace(ratios_G: Doubles, advantages_G: Doubles) -> Doubles:
    """Every rollout gets the smallest ratio of its group."""
    return np.full_like(ratios_G, ratios_G.min())


def orthogonal(ratios_G: Doubles, advantages_G: Doubles) -> Doubles:
    """The ratios with their component along the advantages removed."""
    projected_G: Doubles = (
        ratios_G - (advantages_G @ ratios_G) / (advantages_G @ advantages_G) * advantages_G
    )
    return projected_G


def with_trajectory_weights(
    rows: Sequence[Row], logprobs: Sequence[Floats | None], weighting_name: str
) -> list[Row]:
    """Multiply the rows' token weights by w~; `rows` are those rows of a step that have signal.

    `logprobs` [T] of each row are those of the current policy; None: this policy sampled the row,
    so its ratio is 1.
    """
    ratios_R = np.ones(len(rows))
    for i, (row, current_T) in enumerate(zip(rows, logprobs, strict=True)):
        if current_T is not None:
            ratios_R[i] = mean_ratio(current_T, row.old_logprobs)
    groups = list(rows_by_group(rows).values())
    advantages_R = np.array([row.advantage for row in rows])
    weights_R = weigh_groups(groups, ratios_R, advantages_R, weighting_name)
    weighted_rows = []
    for row, weight in zip(rows, weights_R, strict=True):
        unit_weights_T = np.ones(row.num_tokens, dtype=np.float32)
        credit_T = unit_weights_T if row.weights_T is None else row.weights_T
        weighted_rows.append(replace(row, weights_T=(weight * credit_T).astype(np.float32)))
    return weighted_rows


def mean_ratio(current_T: Floats, old_T: Floats) -> float:
    """w of a rollout: the mean over tokens keeps it comparable between lengths."""
    return float(np.exp(np.mean(current_T - old_T, dtype=np.float64)))


def weigh_groups(
    groups: Sequence[Sequence[int]], ratios_R: Doubles, advantages_R: Doubles, weighting_name: str
) -> Doubles:
    """w~ [R] of the rollouts of a step; `groups` are the indices of each group's rollouts."""
    weigh_rollouts = TRAJECTORY_WEIGHTS.load(weighting_name)
    weights_R = np.ones(len(ratios_R))
    for group in groups:
        members = list(group)
        weights_R[members] = weigh_rollouts(ratios_R[members], advantages_R[members])
    return weights_R
