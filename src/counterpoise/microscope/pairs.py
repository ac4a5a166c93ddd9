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

from counterpoise.microscope.batch_tokens import token_residuals
from counterpoise.model.residuals import Errors, product, wide


@dataclass(frozen=True, slots=True, eq=False)
class PairCoupling:
    similarity: Tensor  # [n], <h_j, h_k>
    phi: Tensor  # [n], eq. 8
    printed_phi: Tensor  # [n], (1 - pi_j(o)) (1 - pi_k(o)); nan where the tokens differ
    alternatives: Tensor  # [n], what eq. 10 leaves out; nan where the tokens differ


@torch.no_grad()
def pair_coupling(
    hidden: Tensor, unembedding: Tensor, tokens: Tensor, j: Tensor, k: Tensor
) -> PairCoupling:
    """For the n pairs (j, k); the caller keeps n to a chunk."""
    h_j, h_k, W = (
        wide(hidden[j]),
        wide(hidden[k]),
        wide(unembedding),
    )
    r_j, r_k = token_residuals(h_j, W, tokens[j]), token_residuals(h_k, W, tokens[k])
    phi = (r_j * r_k).sum(dim=1)
    equal = tokens[j] == tokens[k]
    unsure_j = r_j.gather(1, tokens[j, None]).squeeze(1)
    unsure_k = r_k.gather(1, tokens[k, None]).squeeze(1)
    printed = torch.where(equal, unsure_j * unsure_k, torch.nan)
    return PairCoupling((h_j * h_k).sum(dim=1), phi, printed, phi - printed)


@torch.no_grad()
def kernel_rows(hidden: Tensor, unembedding: Tensor, tokens: Tensor, watched: Tensor) -> Tensor:
    """K_jk of each of the `watched` [n] with every token of the batch: [n, N]."""
    errors = Errors(hidden, unembedding, tokens)
    rows = [
        torch.cat([K for _, K in _kernel_chunks(errors, part)], 1)
        for part in _chunk_watched(errors, watched)
    ]
    return torch.cat(rows)


@torch.no_grad()
def gradient_norms(hidden: Tensor, unembedding: Tensor, tokens: Tensor) -> Tensor:
    """|g_k| = |r_k| |h_k| of every token, so that K_jk / (|g_j| |g_k|) is a cosine: [N]."""
    stretches = Errors(hidden, unembedding, tokens).stretches()
    return torch.cat([R.norm(dim=1) * H.norm(dim=1) for _, R, H in stretches])


@dataclass(frozen=True, slots=True, eq=False)
class StrongestPushes:
    """For every watched token, who moved it: the strongest, up and down."""

    sources: Tensor  # [n, 2 top], indices of the batch; first those that push up, then down
    strengths: Tensor  # [n, 2 top], A_k K_jk times eta / N; 0 where there are no more

    def cpu(self) -> StrongestPushes:
        return StrongestPushes(self.sources.cpu(), self.strengths.cpu())


@torch.no_grad()
def strongest_pushes(
    residuals: Errors, advantages: Tensor, watched: Tensor, *, top: int = 6, eta: float = 1.0
) -> StrongestPushes:
    """The `top` tokens of the batch that push each of the `watched` [n] up most, and down most."""
    top = min(top, len(residuals) - 1)
    scale_N = residuals.here(advantages).to(residuals.wide) * (eta / len(residuals))
    found = [
        _strongest_of_chunk(residuals, scale_N, part, top)
        for part in _chunk_watched(residuals, watched)
    ]
    return StrongestPushes(
        torch.cat([p.sources for p in found]), torch.cat([p.strengths for p in found])
    )


def _strongest_of_chunk(
    errors: Errors, scale_N: Tensor, watched: Tensor, top: int
) -> StrongestPushes:
    """The best so far, with every chunk of the batch."""
    values = scale_N.new_zeros(2, len(watched), top)
    places = torch.zeros(2, len(watched), top, dtype=torch.long, device=errors.device)
    for part, K in _kernel_chunks(errors, watched):
        push = K * scale_N[part]
        at = torch.arange(part.start, part.stop, device=errors.device)
        push.masked_fill_(watched[:, None] == at, 0)  # the token itself
        for side, signed in enumerate((push, -push)):
            best = signed.topk(min(top, len(at)), dim=1)
            both = torch.cat((values[side], best.values.clamp(min=0)), dim=1)
            values[side], chosen = both.topk(top, dim=1)
            places[side] = torch.cat((places[side], at[best.indices]), dim=1).gather(1, chosen)
    return StrongestPushes(
        torch.cat(places.unbind(), dim=1), torch.cat((values[0], -values[1]), dim=1)
    )


def _chunk_watched(errors: Errors, watched: Tensor) -> tuple[Tensor, ...]:
    """A chunk of the batch leaves room for one of the watched."""
    return errors.here(watched).split(errors.chunk)


def _kernel_chunks(errors: Errors, watched: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(a stretch of the batch, K [n, stretch]), chunk after chunk."""
    R_n, H_n = errors.of(watched)
    for part, R, H in errors.stretches():
        yield part, product(R_n, R.mT) * product(H_n, H.mT)
