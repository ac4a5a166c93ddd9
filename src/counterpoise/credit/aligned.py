"""Weights by what a rollout does to held-out answers: aligned rollouts count more, others less.

    G     = mean_{q right} M_q - mean_{q wrong} M_q        M_q = sum_{j in q} r_j h_j^T
    p_t   = A_i r_t^T G h_t                                effect of training on token t, see below
    a_i   = sum_t p_t / sum_t |p_t|                        in [-1, 1], whatever the scale
    w_i,t = 1 + strength a_i                               hard:  1 if sum_t p_t >= 0, else 0
    w_i,t = 1 + strength p_t / max_t |p_t|                 level=token

q runs over held-out answers, those that `monitor.probe` assigns to the half `steer`. Training never
reads the other half, `judge`, so the result can be judged by it. G is the gradient, through the
output layer, of how much more likely right held-out answers are than wrong ones: the direction in
which held-out success grows. p_t is how much training on token t increases that difference, to
first order. The hard form, by rollout, is the filter of I-PPO (arXiv:2604.01597), which drops
episodes whose gradient points away from the validation gradient; there the gradient of the critic's
loss counts too, and here only the output layer does.

strength 0.5: chosen here; no rollout is silenced and no sign flips. Without right or without wrong
answers that mean is left out of G; without any answer the weights are 1.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.coupling_pushes import split_tokens, view_residuals
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.model.residuals import accurate_product
from counterpoise.types import Floats

LEVELS = ("row", "token")
TINY = 1e-30


def weights(
    view: CreditView, *, strength: float = 0.5, level: str = "row", hard: bool = False
) -> list[Floats]:
    """Above 1 for rollouts that raise held-out success to first order, below 1 for the others."""
    if level not in LEVELS:
        raise PoiseError(f"aligned: level is one of {', '.join(LEVELS)}, not '{level}'")
    if not 0 <= strength <= 1:
        raise PoiseError(f"aligned: strength {strength:g} could flip signs: choose 0 to 1")
    direction = steering_direction(view)
    if direction is None or not view.rows:
        return unit_weights(view.rows)
    alignment = [
        _alignment(pushes_T, level=level, hard=hard)
        for pushes_T in split_tokens(token_pushes(view, direction), view.rows)
    ]
    scale = 1.0 if hard else strength
    return [(1 + scale * alignment_T).astype(np.float32) for alignment_T in alignment]


@torch.no_grad()
def steering_direction(view: CreditView) -> Tensor | None:
    """G [V, D], the direction in which held-out success grows; None without an answer."""
    answers = view.steering_rows
    if not answers:
        return None
    is_right = [row.content.reward > 0 for row in answers]
    counts = {kind: is_right.count(kind) for kind in (True, False)}
    # A right answer raises G, a wrong one lowers it, each by its share of its kind.
    answer_weights = [(1.0 if right else -1.0) / counts[right] for right in is_right]
    residuals = view_residuals(CreditView(answers, view.reader))
    weights_J = residuals.to_device(
        np.repeat(answer_weights, [row.num_tokens for row in answers]).astype(np.float32)
    )
    G = residuals.W.new_zeros(residuals.W.shape, dtype=residuals.sum_dtype)
    for chunk, R, H in residuals.iterate_chunks():  # R holds -r
        G -= accurate_product(R.mT, (weights_J[chunk, None] * H).to(H.dtype))
    return G


@torch.no_grad()
def token_pushes(view: CreditView, direction: Tensor) -> NDArray[np.float32]:
    """p of every token, row after row: [N]."""
    residuals = view_residuals(view)
    pushes = [
        -((R.to(direction.dtype) @ direction) * H.to(direction.dtype)).sum(dim=-1)
        for _, R, H in residuals.iterate_chunks()  # R holds -r
    ]
    advantages_N = np.concatenate([row.advantages_T for row in view.rows])
    return advantages_N * torch.cat(pushes).float().cpu().numpy()


def _alignment(pushes_T: Floats, *, level: str, hard: bool) -> NDArray[np.float64]:
    """What `strength` multiplies, for every token; in the hard form -1 if dropped, else 0."""
    pushes = pushes_T.astype(np.float64)
    if level == "row":
        total = np.full(len(pushes), pushes.sum())
        return -(total < 0).astype(np.float64) if hard else total / max(np.abs(pushes).sum(), TINY)
    if hard:
        return -(pushes < 0).astype(np.float64)
    return pushes / max(np.abs(pushes).max(initial=0.0), TINY)
