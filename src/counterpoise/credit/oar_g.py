"""OAR-G: weight tokens by how much noise on their embeddings would change the answer.

    n ~ N(0, noise^2) on the reasoning tokens     P0 clean, P with noise     J = KL(P0 || P)
    I_t = | <dJ/de_t, e_t> |                      w = bi-level reshaping of I (credit/bilevel.py)

credit/outcome.py defines P and the reasoning tokens. compare=answer_joint: J = phi0 - phi, with phi
the mean log-probability of the answer's tokens.

KL is 0 and flat without noise, so J's gradient is of the order of the noise and its direction
depends on the random draw: weights of two single draws correlate by .77 on the embedded model. I is
therefore the mean over `draws` independent draws, each of which costs a forward and a backward pass
to the embeddings; means of four correlate by .94. `draws=1` is the method as published.
answer_joint has no such randomness and takes one draw.

arXiv:2601.07408. noise = 1e-3 and compare = answer_mean are those of the authors' code and README;
the paper's own were not found. draws = 4: chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

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
from counterpoise.errors import PoiseError
from counterpoise.model.head import token_logprobs
from counterpoise.model.load import check_no_logit_softcap
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
    draws: int = 4,
) -> list[Floats]:
    """Token weights of every row, from backward passes through noisy embeddings."""
    check_settings(compare, quantile, boost)
    if draws < 1:
        raise PoiseError(f"oar_g: draws {draws} measures nothing: choose 1 or more")
    is_joint = compare == "answer_joint"
    # Without noise the KL is flat, and its gradient would be rounding error alone.
    if not 0 <= noise < math.inf or not (noise or is_joint):
        raise PoiseError(f"oar_g: noise {noise:g} measures nothing: choose a number above 0")
    if not is_joint:
        view.start_reading()  # P0 is computed while the host searches for answers
    boxes = rows_with_reasoning(view)
    num_draws = 1 if is_joint else draws
    sums = {i: np.zeros(view.rows[i].num_tokens) for i in boxes}
    for draw_number in range(num_draws):
        for i, importance_T in gradient_importance(view, boxes, compare, noise, draw_number):
            sums[i] += importance_T
    means = ((i, (sum_T / num_draws).astype(np.float32)) for i, sum_T in sums.items())
    return weights_from_importance(view, boxes, means, quantile, boost)


def gradient_importance(
    view: CreditView,
    boxes: dict[int, AnswerSpan],
    compare: str,
    noise: float,
    draw_number: int = 0,
) -> Iterator[tuple[int, Floats]]:
    """Yield (row, I [T]) by one draw of the noise."""
    policy = view.policy
    if compare != "answer_joint":
        check_no_logit_softcap(policy, f"oar_g's comparison by {compare}")

    objective_spans = {i: outcome_span(box, compare) for i, box in boxes.items()}
    is_joint = compare == "answer_joint"
    hidden = [] if is_joint else view.hidden  # read before the weights are frozen

    def objective(inputs: ObjectiveInputs) -> Tensor:
        W, softcap = policy.decoder.unembedding, policy.decoder.softcap
        if is_joint:
            return -sum_of_mean_logprobs(inputs, W, softcap)
        clean_hidden = [hidden[i][slice(*objective_spans[i])] for i in inputs.rows]
        clean_states, noisy_states = (
            mean_states(states, inputs.spans)
            for states in (torch.cat(clean_hidden), inputs.hidden_n)
        )
        # Not the KL itself, but a scalar that has its gradient.
        return (kl_gradient(clean_states, noisy_states.detach(), W) * noisy_states).sum()

    return token_saliency(
        view,
        objective_spans,
        objective,
        gradient_times_input,
        draw_noise(view, boxes, noise, draw_number),
    )


def draw_noise(
    view: CreditView, boxes: dict[int, AnswerSpan], size: float, draw_number: int = 0
) -> EmbeddingNoise:
    """Noise for the reasoning tokens of all rows, drawn at once: passes do not affect it."""
    policy, reader = view.policy, view.reader
    assert reader is not None
    span_bounds = np.cumsum([0, *(box.box_start for box in boxes.values())]).tolist()
    # A seed of its own for each iteration and draw: a resumed run draws the same noise.
    generator = torch.Generator(policy.device)
    generator.manual_seed(seed_for(reader.seed, "oar_g", reader.iteration, draw_number))
    model: Any = policy.model
    embedding = model.get_input_embeddings().weight
    values_nD = torch.randn(
        span_bounds[-1],
        embedding.shape[1],
        generator=generator,
        device=embedding.device,
        dtype=embedding.dtype,
    )
    return EmbeddingNoise(size * values_nD, dict(zip(boxes, pairwise(span_bounds), strict=True)))


def sum_of_mean_logprobs(inputs: ObjectiveInputs, W: Tensor, softcap: float = 0.0) -> Tensor:
    """The sum over rows of phi, the mean log-probability of a row's answer tokens."""
    lengths = np.array([end - start for start, end in inputs.spans])
    share = to_device(np.repeat(1 / lengths, lengths), inputs.hidden_n.device)
    logprobs, _ = token_logprobs(inputs.hidden_n, W, inputs.targets_n, softcap=softcap)
    return (logprobs * share.to(logprobs.dtype)).sum()


def gradient_times_input(gradient: Tensor, embedded: Tensor) -> Tensor:
    """I_t: the absolute inner product of gradient and embedding."""
    return (gradient * embedded).sum(dim=-1).abs()
