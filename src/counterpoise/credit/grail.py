r"""GRAIL: what the answer's likelihood is sensitive to is weighed more.

    L = -sum_{t in box} log pi(o_t)        s_t = | dL/de_t * e_t |_2,  e_t the token's embedding
    l_t = log(s_t + 1e-8)                  z_t = (l_t - mean l) / sqrt(var l + 1e-8)
    w_t = clip(mean + spread z_t, low, high)

then `high` for the content of the box, `mean` for the rest of it and for all that follows. The box
is the first balanced \boxed{...}, braces included; mean and variance are over the tokens of the
rollout on which L depends. Rollouts other than `which` asks for get w = 1, but keep the weights of
their box. No box: w = 1. Nothing is renormalised. arXiv:2606.04889

Defaults are those of the released run file (`which`, spread, mean, low, high). Its code differs in
two places: it weighs token t by the embedding one place before, and counts tokens after the box,
whose s is 0, in mean and variance.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterpoise.credit.answer_spans import locate_answers
from counterpoise.credit.embedding_saliency import ObjectiveInputs, token_saliency
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import unknown
from counterpoise.model.head import token_logprobs
from counterpoise.types import Floats

EPSILON = 1e-8
ADVANTAGE_SIGNS = {"wrong": (-1,), "correct": (1,), "both": (-1, 1)}  # signs of the advantage


def weights(
    view: CreditView,
    *,
    which: str = "wrong",
    spread: float = 0.5,
    mean: float = 1.0,
    low: float = 0.5,
    high: float = 5.0,
) -> list[Floats]:
    if which not in ADVANTAGE_SIGNS:
        raise unknown("kind of rollout for grail", which, ADVANTAGE_SIGNS)
    found = unit_weights(view.rows)
    boxes = {i: box for i, box in enumerate(locate_answers(view, first_box=True)) if box}
    weighed = [i for i in boxes if view.rows[i].sign in ADVANTAGE_SIGNS[which]]

    def loss(read: ObjectiveInputs) -> Tensor:
        assert view.reader is not None
        W, temperature = view.policy.decoder.unembedding, view.reader.temperature
        logprobs, _ = token_logprobs(read.hidden_n, W, read.targets_n, temperature)
        return -logprobs.sum()

    asked = {i: (boxes[i].box_start, boxes[i].box_end) for i in weighed}
    for i, s_T in token_saliency(view, asked, loss, norm_of_gradient_times_input):
        found[i] = weights_from_saliency(s_T, boxes[i].box_end - 1, spread, mean, low, high)
    for i, box in boxes.items():
        found[i][box.box_start :] = mean
        found[i][box.content_start : box.content_end] = high
    return found


def norm_of_gradient_times_input(gradient: Tensor, embedded: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient * embedded, dim=-1)


def weights_from_saliency(
    s_T: Floats, reach: int, spread: float, mean: float, low: float, high: float
) -> Floats:
    """Weights [T]; the first `reach` tokens are those on which the loss depends."""
    l_T = np.log(s_T.astype(np.float64) + EPSILON)
    if reach:
        valid = l_T[:reach]
        z_T = (l_T - valid.mean()) / np.sqrt(valid.var() + EPSILON)
    else:  # the box is the first token: nothing came before
        z_T = np.zeros_like(l_T)
    return np.clip(mean + spread * z_T, low, high).astype(np.float32)
