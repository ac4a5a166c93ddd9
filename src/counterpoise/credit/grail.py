r"""GRAIL: tokens that the answer's likelihood is sensitive to get more weight.

    L = -sum_{t in box} log pi(o_t)        s_t = | dL/de_t * e_t |_2,  e_t the token's embedding
    l_t = log(s_t + 1e-8)                  z_t = (l_t - mean l) / sqrt(var l + 1e-8)
    w_t = clip(mean + spread z_t, low, high)

The content of the box then gets `high`; the rest of the box and everything after it get `mean`. The
box is the first balanced \boxed{...}, braces included; mean and variance are over the tokens of
the rollout on which L depends. Rollouts that `which` does not select get w = 1, except for their
box. No box: w = 1. Nothing is renormalised. arXiv:2606.04889

Defaults are those of the released run file (`which`, spread, mean, low, high). The released code
differs in two places, and `released_indexing` does as it does: token t is weighted by the saliency
of the input before it, the one that predicts it (for the first token the last of the prompt), and
mean and variance include the tokens that L does not depend on, whose s is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from counterpoise.credit.answer_spans import locate_answers
from counterpoise.credit.embedding_saliency import Objective, ObjectiveInputs, token_saliency
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.model.head import token_logprobs
from counterpoise.model.spans import Span
from counterpoise.types import Floats, Row

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
    released_indexing: bool = False,
) -> list[Floats]:
    """Token weights of every row, from the saliency of its boxed answer."""
    if which not in ADVANTAGE_SIGNS:
        raise unknown_name("kind of rollout for grail", which, ADVANTAGE_SIGNS)
    if not 0 <= low <= mean <= high < math.inf or not 0 <= spread < math.inf:
        raise PoiseError(
            "grail: set spread to 0 or above and 0 <= low <= mean <= high, all finite, not "
            f"{spread:g}, and {low:g}, {mean:g} and {high:g}"
        )
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
    saliencies = (
        preceding_saliency(view, objective_spans, loss)
        if released_indexing
        else token_saliency(view, objective_spans, loss, norm_of_gradient_times_input)
    )
    for i, saliency_T in saliencies:
        reach = len(saliency_T) if released_indexing else boxes[i].box_end - 1
        row_weights[i] = weights_from_saliency(saliency_T, reach, spread, mean, low, high)
    # The box's own weights apply to every rollout, also to those that `which` leaves out.
    for i, box in boxes.items():
        row_weights[i][box.box_start :] = mean
        row_weights[i][box.content_start : box.content_end] = high
    return row_weights


def preceding_saliency(
    view: CreditView, objective_spans: Mapping[int, Span], loss: Objective
) -> Iterator[tuple[int, Floats]]:
    """Yield (row, [T]): the saliency of the input before each token, the prompt's last included."""
    # With the prompt's last token counted as the response's first, positions shift by one.
    shifted_rows = [_move_prompt_token(row) for row in view.rows]
    shifted_spans = {i: (start + 1, end + 1) for i, (start, end) in objective_spans.items()}
    for i, saliency in token_saliency(
        CreditView(shifted_rows, view.reader), shifted_spans, loss, norm_of_gradient_times_input
    ):
        yield i, saliency[:-1]


def _move_prompt_token(row: Row) -> Row:
    """The row with the last token of its prompt at the start of its response."""
    content = row.content
    shifted_content = replace(
        content,
        prompt_tokens=content.prompt_tokens[:-1],
        response_tokens=np.concatenate((content.prompt_tokens[-1:], content.response_tokens)),
        sampled_logprobs=np.concatenate((np.zeros(1, np.float32), content.sampled_logprobs)),
    )
    return replace(row, num_tokens=row.num_tokens + 1, rollout=shifted_content)


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
    else:  # the box is a single token, the response's first: no response token precedes it
        z_score_T = np.zeros_like(log_saliency_T)
    return np.clip(mean + spread * z_score_T, low, high).astype(np.float32)
