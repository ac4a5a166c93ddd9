"""The output-layer kernel for chosen tokens: pairs, whole rows, and the strongest pushes.

    K_jk = <h_j, h_k> phi_jk
    phi_jk = <r_j, r_k> = 1[o_j = o_k] - pi_j(o_k) - pi_k(o_j) + <pi_j, pi_k>              (eq. 8)

For equal tokens o the printed eq. 10 says phi = (1 - pi_j(o)) (1 - pi_k(o)). That is not all:

    phi = (1 - pi_j(o)) (1 - pi_k(o)) + sum_{v != o} pi_j(v) pi_k(v)

Two equal tokens usually had the same alternatives too, and lowering the alternatives of one lowers
those of the other. This package computes eq. 8; `alternatives` is the term that eq. 10 leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise.microscope.batch_tokens import token_residuals
from counterpoise.model.residuals import Residuals, accurate_product, wide


@dataclass(frozen=True, slots=True, eq=False)
class PairCoupling:
    """Coupling of n pairs of tokens, and what the printed eq. 10 gives for it."""

    similarity: Tensor  # [n], <h_j, h_k>
    phi: Tensor  # [n], eq. 8
    printed_phi: Tensor  # [n], (1 - pi_j(o)) (1 - pi_k(o)); nan where the tokens differ
    alternatives: Tensor  # [n], the term eq. 10 leaves out; nan where the tokens differ


@torch.no_grad()
def pair_coupling(
    hidden: Tensor,
    unembedding: Tensor,
    tokens: Tensor,
    j: Tensor,
    k: Tensor,
    *,
    softcap: float = 0.0,
) -> PairCoupling:
    """Coupling of the n pairs (j, k). The caller passes chunks: residuals [n, V] are formed.

    With a soft cap every entry of r, and so every term of phi, has the cap's slopes as factors.
    """
    h_j, h_k, W = wide(hidden[j]), wide(hidden[k]), wide(unembedding)
    r_j = token_residuals(h_j, W, tokens[j], softcap)
    r_k = token_residuals(h_k, W, tokens[k], softcap)
    phi = (r_j * r_k).sum(dim=1)
    same_token = tokens[j] == tokens[k]
    # r(o) = 1 - pi(o): the token's own entry of its residual.
    own_entry_j = r_j.gather(1, tokens[j, None]).squeeze(1)
    own_entry_k = r_k.gather(1, tokens[k, None]).squeeze(1)
    printed_phi = torch.where(same_token, own_entry_j * own_entry_k, torch.nan)
    return PairCoupling((h_j * h_k).sum(dim=1), phi, printed_phi, phi - printed_phi)


@torch.no_grad()
def kernel_rows(
    hidden: Tensor, unembedding: Tensor, tokens: Tensor, watched: Tensor, *, softcap: float = 0.0
) -> Tensor:
    """K_jk of each `watched` token j [n] with every token k of the batch: [n, N]."""
    residuals = Residuals(hidden, unembedding, tokens, softcap=softcap)
    row_chunks = [
        torch.cat([K for _, K in _kernel_chunks(residuals, chunk)], 1)
        for chunk in _chunk_watched(residuals, watched)
    ]
    return torch.cat(row_chunks)


@torch.no_grad()
def gradient_norms(
    hidden: Tensor, unembedding: Tensor, tokens: Tensor, *, softcap: float = 0.0
) -> Tensor:
    """|g_k| = |r_k| |h_k| of every token, so that K_jk / (|g_j| |g_k|) is a cosine: [N]."""
    chunks = Residuals(hidden, unembedding, tokens, softcap=softcap).iterate_chunks()
    return torch.cat([R.norm(dim=1) * H.norm(dim=1) for _, R, H in chunks])


@dataclass(frozen=True, slots=True, eq=False)
class StrongestPushes:
    """For every watched token, the tokens that push it up and down most."""

    sources: Tensor  # [n, 2 top], batch indices: first those that push up, then down
    strengths: Tensor  # [n, 2 top], pull_k K_jk eta / N; 0 where there are no more

    def cpu(self) -> StrongestPushes:
        return StrongestPushes(self.sources.cpu(), self.strengths.cpu())


@torch.no_grad()
def strongest_pushes(
    residuals: Residuals, pulls: Tensor, watched: Tensor, *, top: int = 6, eta: float = 1.0
) -> StrongestPushes:
    """The `top` tokens that push each `watched` token [n] up most, and those that push it down.

    `pulls` [N] weigh the tokens' scores: A, or -dL/dlogp of a step.
    """
    top = min(top, len(residuals) - 1)
    scale_N = residuals.to_device(pulls).to(residuals.sum_dtype) * (eta / len(residuals))
    chunk_results = [
        _strongest_of_chunk(residuals, scale_N, chunk, top)
        for chunk in _chunk_watched(residuals, watched)
    ]
    return StrongestPushes(
        torch.cat([result.sources for result in chunk_results]),
        torch.cat([result.strengths for result in chunk_results]),
    )


def _strongest_of_chunk(
    residuals: Residuals, scale_N: Tensor, watched: Tensor, top: int
) -> StrongestPushes:
    """Update the strongest pushes so far with every chunk of the batch, so no [n, N] is formed."""
    best_values = scale_N.new_zeros(2, len(watched), top)
    best_sources = torch.zeros(2, len(watched), top, dtype=torch.long, device=residuals.device)
    for span, K in _kernel_chunks(residuals, watched):
        signed_push = K * scale_N[span]
        indices = torch.arange(span.start, span.stop, device=residuals.device)
        signed_push.masked_fill_(watched[:, None] == indices, 0)  # not the token itself
        for direction, push in enumerate((signed_push, -signed_push)):
            candidates = push.topk(min(top, len(indices)), dim=1)
            # Unused slots hold 0, so a negative candidate must not win one: clamp it to 0.
            contenders = torch.cat((best_values[direction], candidates.values.clamp(min=0)), dim=1)
            best_values[direction], winners = contenders.topk(top, dim=1)
            best_sources[direction] = torch.cat(
                (best_sources[direction], indices[candidates.indices]), dim=1
            ).gather(1, winners)
    return StrongestPushes(
        torch.cat(best_sources.unbind(), dim=1), torch.cat((best_values[0], -best_values[1]), dim=1)
    )


def _chunk_watched(residuals: Residuals, watched: Tensor) -> tuple[Tensor, ...]:
    """Watched tokens in chunks as large as those of the batch: both fit into memory together."""
    return residuals.to_device(watched).split(residuals.chunk_size)


def _kernel_chunks(residuals: Residuals, watched: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(slice of the batch, K [n, slice]), chunk after chunk."""
    R_n, H_n = residuals.gather(watched)
    for span, R, H in residuals.iterate_chunks():
        yield span, accurate_product(R_n, R.mT) * accurate_product(H_n, H.mT)
