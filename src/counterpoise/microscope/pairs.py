"""The output-layer kernel for chosen tokens: pairs, whole rows, and who pushes a token most.

    K_jk = <h_j, h_k> phi_jk
    phi_jk = <r_j, r_k> = 1[o_j = o_k] - pi_j(o_k) - pi_k(o_j) + <pi_j, pi_k>              (eq. 8)

For equal tokens o the printed eq. 10 says phi = (1 - pi_j(o)) (1 - pi_k(o)). That is not all:

    phi = (1 - pi_j(o)) (1 - pi_k(o)) + sum_{v != o} pi_j(v) pi_k(v)

Two tokens that are equal usually had the same alternatives too, and pushing one's alternatives down
pushes the other's. Eq. 8 is what this package computes; `alternatives` is the term left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise.microscope.tokens import errors

CHUNK = 1 << 22  # errors r of one chunk of the batch


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    similarity: Tensor  # [n], <h_j, h_k>
    phi: Tensor  # [n], eq. 8
    printed: Tensor  # [n], (1 - pi_j(o)) (1 - pi_k(o)); nan where the tokens differ
    alternatives: Tensor  # [n], what eq. 10 leaves out; nan where the tokens differ


@torch.no_grad()
def pairs(hidden: Tensor, unembedding: Tensor, tokens: Tensor, j: Tensor, k: Tensor) -> Pairs:
    """For the n pairs (j, k); the caller keeps n to a chunk."""
    h_j, h_k, W = wide(hidden[j]), wide(hidden[k]), wide(unembedding)
    r_j, r_k = errors(h_j, W, tokens[j]), errors(h_k, W, tokens[k])
    phi = (r_j * r_k).sum(dim=1)
    equal = tokens[j] == tokens[k]
    unsure_j = r_j.gather(1, tokens[j, None]).squeeze(1)
    unsure_k = r_k.gather(1, tokens[k, None]).squeeze(1)
    printed = torch.where(equal, unsure_j * unsure_k, torch.nan)
    return Pairs((h_j * h_k).sum(dim=1), phi, printed, phi - printed)


@torch.no_grad()
def kernel(
    hidden: Tensor, unembedding: Tensor, tokens: Tensor, watched: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """K_jk of each of the `watched` [n] with every token of the batch: [n, N]."""
    return torch.cat(
        [K for _, K in _blocks(hidden, unembedding, tokens, watched, chunk)],
        dim=1,
    )


@torch.no_grad()
def norms(hidden: Tensor, unembedding: Tensor, tokens: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """|g_k| = |r_k| |h_k| of every token, so that K_jk / (|g_j| |g_k|) is a cosine: [N]."""
    W = wide(unembedding)
    return torch.cat(
        [
            errors(wide(hidden[part]), W, tokens[part]).norm(dim=1) * wide(hidden[part]).norm(dim=1)
            for part in _parts(tokens, len(unembedding), chunk)
        ]
    )


@dataclass(frozen=True, slots=True, eq=False)
class Pushes:
    """For every watched token, who moved it: the strongest, up and down."""

    places: Tensor  # [n, 2 top], indices of the batch; first those that push up, then down
    pushes: Tensor  # [n, 2 top], A_k K_jk times eta / N; 0 where there are no more


@torch.no_grad()
def strongest(
    hidden: Tensor,
    unembedding: Tensor,
    tokens: Tensor,
    advantages: Tensor,
    watched: Tensor,
    *,
    top: int = 6,
    eta: float = 1.0,
    chunk: int = CHUNK,
) -> Pushes:
    """The `top` tokens of the batch that push each of the `watched` [n] up most, and down most."""
    N, top = len(tokens), min(top, len(tokens) - 1)
    best_value = wide(hidden).new_zeros(2, len(watched), top)
    best_place = torch.zeros(2, len(watched), top, dtype=torch.long, device=hidden.device)
    for part, K in _blocks(hidden, unembedding, tokens, watched, chunk):
        push = K * (advantages[part] * eta / N).to(K.dtype)
        push[watched[:, None] == part[None]] = 0  # the token itself
        for side, sign in enumerate((1.0, -1.0)):
            values = torch.cat((best_value[side], (sign * push).clamp(min=0)), dim=1)
            places = torch.cat((best_place[side], part.expand(len(watched), -1)), dim=1)
            best_value[side], at = values.topk(top, dim=1)
            best_place[side] = places.gather(1, at)
    return Pushes(
        torch.cat((best_place[0], best_place[1]), dim=1),
        torch.cat((best_value[0], -best_value[1]), dim=1),
    )


def wide(x: Tensor) -> Tensor:
    """Half precision as float32: products of small errors need it."""
    return x if x.dtype == torch.float64 else x.float()


def _blocks(
    hidden: Tensor, unembedding: Tensor, tokens: Tensor, watched: Tensor, chunk: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """(places of a chunk of the batch, K [n, chunk]), chunk after chunk."""
    W, H_w = wide(unembedding), wide(hidden[watched])
    R_w = errors(H_w, W, tokens[watched])
    for part in _parts(tokens, len(W), chunk):
        H = wide(hidden[part])
        yield part, (R_w @ errors(H, W, tokens[part]).T) * (H_w @ H.T)


def _parts(tokens: Tensor, vocabulary: int, chunk: int) -> tuple[Tensor, ...]:
    step = max(1, chunk // vocabulary)
    return torch.arange(len(tokens), device=tokens.device).split(step)
