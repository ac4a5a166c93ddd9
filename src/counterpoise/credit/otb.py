"""OTB: a baseline for every position, the one that minimises the variance of the gradient.

    A_{i,t} = G_{i,t} - B_t        B_t = sum_i G_{i,t} W_{i,t} / sum_i W_{i,t}
    W_{i,t} = sum_{j <= t} |r_{i,j}|^2,    |r_j|^2 = 1 - 2 pi_j(o_j) + sum_v pi_j(v)^2

over the rollouts i of a group that have a token t. With one reward at the end G_{i,t} is the reward
of the rollout. |r_j|^2, r = e_o - pi, is the squared gradient of log pi(o_j) by the logits, so that
W_{i,t} is about the squared gradient of the rollout up to t. Weighted by it, the mean reward B_t
gives the least variance; the plain mean of a group does not. arXiv:2602.07078, as in verl's
`optimal_token_baseline`.

As token weights: G_i - B_t is a mean of differences G_i - G_k, and the advantages of a group differ
by the same amounts up to one factor, so

    w_{i,t} = 1 - (sum_k W_{k,t} A_k / sum_k W_{k,t}) / A_i

which with `dr_grpo` is OTB itself and with `grpo`, `rloo`, `maxrl` or `f_grpo` has their scale.
Rewards of two values never give a negative weight. Where only one rollout is long enough to have a
token t, B_t is its own reward and w = 0 (verl takes B = 0 there). Until some token of the group was
uncertain, all W are 0 and w = 1. A rollout whose reward is exactly the group's mean has no
advantage to weight and does not count in B.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.credit.coupling_pushes import split_tokens, view_residuals
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.model.residuals import wide
from counterpoise.types import Floats


def weights(view: CreditView) -> list[Floats]:
    """Token weights of every row, from the baseline of its group at every position."""
    row_weights = unit_weights(view.rows)
    if not view.rows:
        return row_weights
    squares = split_tokens(squared_residuals(view), view.rows)
    energies = [np.cumsum(squares_T, dtype=np.float64) for squares_T in squares]
    for group in view.groups:
        longest = max(view.rows[i].num_tokens for i in group)
        energy_GT = np.zeros((len(group), longest))
        for g, i in enumerate(group):
            energy_GT[g, : len(energies[i])] = energies[i]
        advantages_G = np.array([view.rows[i].advantage for i in group])
        total_T = energy_GT.sum(axis=0)
        weighted_T = advantages_G @ energy_GT
        baseline_T = np.divide(weighted_T, total_T, out=np.zeros(longest), where=total_T > 0)
        for i, advantage in zip(group, advantages_G.tolist(), strict=True):
            shift_T = baseline_T[: view.rows[i].num_tokens] / advantage
            row_weights[i] = (1 - shift_T).astype(np.float32)
    return row_weights


@torch.no_grad()
def squared_residuals(view: CreditView) -> NDArray[np.float32]:
    """|r|^2 of every token of the view, row after row: [N]."""
    residuals = view_residuals(view)
    squares_N = torch.empty(len(residuals), dtype=torch.float32, device=residuals.device)
    for chunk, R, _ in residuals.iterate_chunks():
        squares_N[chunk] = wide(R).square().sum(dim=1).float()
    host_squares: NDArray[np.float32] = squares_N.cpu().numpy()
    return host_squares
