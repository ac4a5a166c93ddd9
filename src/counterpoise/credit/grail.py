r"""GRAIL: tokens that the answer's likelihood is sensitive to get more weight.

    L = -sum_{t in box} log pi(o_t)        s_t = | dL/de_t * e_t |_2,  e_t the token's embedding
    l_t = log(s_t + 1e-8)                  z_t = (l_t - mean l) / sqrt(var l + 1e-8)
    w_t = clip(mean + spread z_t, low, high)

The content of the box then gets `high`; the rest of the box and everything after it get `mean`. The
box is the first balanced \boxed{...}, braces included; mean and variance are over the tokens of
the rollout on which L depends. Rollouts that `which` does not select get w = 1, except for their
box. No box: w = 1. Nothing is renormalised. arXiv:2606.04889

Defaults are those of the released run file (`which`, spread, mean, low, high). The released code
differs in two places: it weights token t by the embedding one position earlier, and it includes
tokens after the box, whose s is 0, in mean and variance.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterpoise.credit.answer_spans import locate_answers
from counterpoise.credit.embedding_saliency import ObjectiveInputs, token_saliency
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import unknown_name
from counterpoise.model.head import token_logprobs
from counterpoise.types import Floats

EPSILON = 1e-8
ADVANTAGE_SIGNS = {"wrong": (-1,), "correct": (1,), "both": (-1, 1)}  # by the setting `which`


def weights(
    view: CreditView,
    *,
    which: str = "wrong",
    spread: float = 0.5,
    mean: float = 1.0,
    low: float = 0.5,
    high: float = 5.0,
) -> list[Floats]:
    """Token weights of every row, from the saliency of its boxed answer."""
    if which not in ADVANTAGE_SIGNS:
        raise unknown_name("kind of rollout for grail", which, ADVANTAGE_SIGNS)
    row_weights = unit_weights(view.rows)
    boxes = {i: box for i, box in enumerate(locate_answers(view, first_box=True)) if box}
    weighted_rows = [i for i in boxes if view.rows[i].sign in ADVANTAGE_SIGNS[which]]

    def loss(inputs: ObjectiveInputs) -> Tensor:
        assert view.reader is not None
        decoder, temperature = view.policy.decoder, view.reader.temperature
        logprobs, _ = token_logprobs(
            inputs.hidden_n,
            decoder.unembedding,
            inputs.targets_n,
            temperature,
            softcap=decoder.softcap,
        )
        return -logprobs.sum()

    objective_spans = {i: (boxes[i].box_start, boxes[i].box_end) for i in weighted_rows}
    for i, saliency_T in token_saliency(view, objective_spans, loss, norm_of_gradient_times_input):
        row_weights[i] = weights_from_saliency(
            saliency_T, boxes[i].box_end - 1, spread, mean, low, high
        )
    # The box's own weights apply to every rollout, also to those that `which` leaves out.
    for i, box in boxes.items():
        row_weights[i][box.box_start :] = mean
        row_weights[i][box.content_start : box.content_end] = high
    return row_weights


def norm_of_gradient_times_input(gradient: Tensor, embedded: Tensor) -> Tensor:
    """s_t: the norm of gradient times embedding, per token."""
    return torch.linalg.vector_norm(gradient * embedded, dim=-1)


def weights_from_saliency(
    saliency_T: Floats, reach: int, spread: float, mean: float, low: float, high: float
) -> Floats:
    """Weights [T] from saliencies [T]; the loss depends on the first `reach` tokens only."""
    log_saliency_T = np.log(saliency_T.astype(np.float64) + EPSILON)
    if reach:
        influential = log_saliency_T[:reach]
        z_score_T = (log_saliency_T - influential.mean()) / np.sqrt(influential.var() + EPSILON)
    else:  # the box starts with the first token: the loss depends on no earlier one
        z_score_T = np.zeros_like(log_saliency_T)
    return np.clip(mean + spread * z_score_T, low, high).astype(np.float32)
