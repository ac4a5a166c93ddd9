"""OAR-G: how much a little noise on a token's embedding would move the answer, by one backward.

    n ~ N(0, noise^2) on the reasoning tokens     P0 clean, P with noise     J = KL(P0 || P)
    I_t = | <dJ/de_t, e_t> |                      w = bi-level reshaping of I (credit/bilevel.py)

What P is, and what reasoning: credit/outcome.py. compare=answer_joint: J = phi0 - phi, phi the mean
log-probability of the answer's tokens.

KL is 0 and flat where the noise is 0, so J's gradient is of the noise's order and its direction is
the noise's draw; answer_joint has no such luck in it. arXiv:2601.07408. noise = 1e-3 and
compare = answer_mean are those of the authors' code and README; the paper's own were not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from counterpoise.credit.answer_spans import AnswerSpan
from counterpoise.credit.bilevel import DEFAULT_BOOST, DEFAULT_QUANTILE
from counterpoise.credit.divergence import kl_gradient, mean_states
from counterpoise.credit.embedding_saliency import EmbeddingNoise, ObjectiveInputs, token_saliency
from counterpoise.credit.outcome import (
    check_settings,
    outcome_span,
    rows_with_reasoning,
    weights_from_importance,
)
from counterpoise.credit.view import CreditView
from counterpoise.model.head import token_logprobs
from counterpoise.model.transfer import to_device
from counterpoise.seeds import seed_for
from counterpoise.types import Floats


def weights(
    view: CreditView,
    *,
    compare: str = "answer_mean",
    noise: float = 1e-3,
    quantile: float = DEFAULT_QUANTILE,
    boost: float = DEFAULT_BOOST,
) -> list[Floats]:
    check_settings(compare, quantile, boost)
    if compare != "answer_joint":
        view.start_reading()  # P0 is computed while answers are looked for
    boxes = rows_with_reasoning(view)
    return weights_from_importance(
        view, boxes, gradient_importance(view, boxes, compare, noise), quantile, boost
    )


def gradient_importance(
    view: CreditView, boxes: dict[int, AnswerSpan], compare: str, noise: float
) -> Iterator[tuple[int, Floats]]:
    """(row, I [T])"""
    policy = view.policy

    asked = {i: outcome_span(box, compare) for i, box in boxes.items()}
    joint = compare == "answer_joint"
    hidden = [] if joint else view.hidden  # read before anything is differentiated

    def objective(read: ObjectiveInputs) -> Tensor:
        W = policy.decoder.unembedding
        if joint:
            return -sum_of_mean_logprobs(read, W)
        clean = [hidden[i][slice(*asked[i])] for i in read.rows]
        before, after = (mean_states(h, read.spans) for h in (torch.cat(clean), read.hidden_n))
        return (
            kl_gradient(before, after.detach(), W) * after
        ).sum()  # its gradient is that of the KL

    return token_saliency(
        view, asked, objective, gradient_times_input, draw_noise(view, boxes, noise)
    )


def draw_noise(view: CreditView, boxes: dict[int, AnswerSpan], size: float) -> EmbeddingNoise:
    """For the reasoning tokens of all rows at once, so that passes may be cut anyhow."""
    policy, reader = view.policy, view.reader
    assert reader is not None
    ends = np.cumsum([0, *(box.box_start for box in boxes.values())]).tolist()
    generator = torch.Generator(policy.device)
    generator.manual_seed(seed_for(reader.seed, "oar_g", reader.iteration))
    like = policy.decoder.embedding.weight
    values_nD = torch.randn(
        ends[-1], like.shape[1], generator=generator, device=like.device, dtype=like.dtype
    )
    return EmbeddingNoise(size * values_nD, dict(zip(boxes, pairwise(ends), strict=True)))


def sum_of_mean_logprobs(read: ObjectiveInputs, W: Tensor) -> Tensor:
    lengths = np.array([end - start for start, end in read.spans])
    share = to_device(np.repeat(1 / lengths, lengths), read.hidden_n.device)
    logprobs, _ = token_logprobs(read.hidden_n, W, read.targets_n)
    return (logprobs * share.to(logprobs.dtype)).sum()


def gradient_times_input(gradient: Tensor, embedded: Tensor) -> Tensor:
    return (gradient * embedded).sum(dim=-1).abs()
