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

from counterpoise.credit.answer_spans import Answer
from counterpoise.credit.bilevel import BOOST, QUANTILE
from counterpoise.credit.divergence import mean_states, slope
from counterpoise.credit.embedding_saliency import Noise, Pass, saliency
from counterpoise.credit.outcome import check, judged, reasoned, weighed
from counterpoise.credit.view import View
from counterpoise.model.head import token_logprobs
from counterpoise.model.transfer import to_device
from counterpoise.seeds import seed_for
from counterpoise.types import Floats


def weights(
    view: View,
    *,
    compare: str = "answer_mean",
    noise: float = 1e-3,
    quantile: float = QUANTILE,
    boost: float = BOOST,
) -> list[Floats]:
    check(compare, quantile, boost)
    if compare != "answer_joint":
        view.begin()  # P0 is computed while answers are looked for
    boxes = reasoned(view)
    return weighed(view, boxes, importance(view, boxes, compare, noise), quantile, boost)


def importance(
    view: View, boxes: dict[int, Answer], compare: str, noise: float
) -> Iterator[tuple[int, Floats]]:
    """(row, I [T])"""
    policy = view.policy

    asked = {i: judged(box, compare) for i, box in boxes.items()}
    joint = compare == "answer_joint"
    hidden = [] if joint else view.hidden  # read before anything is differentiated

    def objective(read: Pass) -> Tensor:
        W = policy.decoder.unembedding
        if joint:
            return -sum_of_mean_logprobs(read, W)
        clean = [hidden[i][slice(*asked[i])] for i in read.rows]
        before, after = (mean_states(h, read.spans) for h in (torch.cat(clean), read.hidden_n))
        return (slope(before, after.detach(), W) * after).sum()  # its gradient is that of the KL

    return saliency(view, asked, objective, gradient_times_input, drawn(view, boxes, noise))


def drawn(view: View, boxes: dict[int, Answer], size: float) -> Noise:
    """For the reasoning tokens of all rows at once, so that passes may be cut anyhow."""
    policy, reader = view.policy, view.reader
    assert reader is not None
    ends = np.cumsum([0, *(box.mark for box in boxes.values())]).tolist()
    generator = torch.Generator(policy.device)
    generator.manual_seed(seed_for(reader.seed, "oar_g", reader.iteration))
    like = policy.decoder.embedding.weight
    values_nD = torch.randn(
        ends[-1], like.shape[1], generator=generator, device=like.device, dtype=like.dtype
    )
    return Noise(size * values_nD, dict(zip(boxes, pairwise(ends), strict=True)))


def sum_of_mean_logprobs(read: Pass, W: Tensor) -> Tensor:
    lengths = np.array([end - start for start, end in read.spans])
    share = to_device(np.repeat(1 / lengths, lengths), read.hidden_n.device)
    logprobs, _ = token_logprobs(read.hidden_n, W, read.targets_n)
    return (logprobs * share.to(logprobs.dtype)).sum()


def gradient_times_input(gradient: Tensor, embedded: Tensor) -> Tensor:
    return (gradient * embedded).sum(dim=-1).abs()
