"""Who pushed token j: the output-layer displacement of eq. 9, split exactly, in linear time.

    delta_j = (eta / N) sum_k A_k <h_j, h_k> <r_j, r_k>,       r_j = e_{o_j} - pi_j
            = (eta / N) r_j^T M h_j,                           M = sum_k A_k r_k h_k^T   [V, D]

Because M is a sum over tokens, every share of delta_j is the same expression with fewer tokens in
M: those of positive rollouts, of j's query, with j's own token. For a set of n tokens that push
each other there are two exact ways, and the cheaper one is taken:

    n large   build M of the set, then r_j^T M h_j             n V D     linear in n
    n small   the kernel itself, <h_j, h_k> * <r_j, r_k>       n^2 (V + D)

so no N x N kernel is ever formed. Three walks over the tokens, sorted by token, by query and by
both, give four sums for each sign (everything, same token, same query, both); the eight parts are
their differences. Probabilities are recomputed from h, a chunk at a time: memory holds a few
[V, 2D] and one chunk.

`microscope/pairs.py` is the same kernel for chosen pairs, and says where eq. 10 is incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from counterpoise.microscope.tokens import check_tokens, errors

Same = Literal["same", "other"]
Sign = Literal["positive", "negative"]
Part = tuple[Same, Same, Sign]  # (identity, query, sign)
CHUNK_ELEMENTS = 1 << 24  # errors r of one chunk: 64 MB in float32
BLOCK = 128  # tokens of small sets that share one kernel

Visit = Callable[[Tensor, Tensor, Tensor], None]  # (places, R, H) of a chunk, each token once


@dataclass(frozen=True, slots=True, eq=False)
class Coupling:
    """The displacement of every token [N], and where it came from. All values carry eta / N.

    Example:
        c.own[j] + sum(part[j] for part in c.parts.values()) == c.total[j]
        c.parts["same", "other", "negative"][j]    by equal tokens in failures of other queries
    """

    own: Tensor  # A_j |r_j|^2 |h_j|^2: the token's push on itself
    parts: dict[Part, Tensor]  # each [N]; the token itself is in none of them
    total: Tensor
    positive: Tensor  # by tokens with A > 0, the token itself included
    negative: Tensor

    @property
    def coupled(self) -> Tensor:
        """What the other tokens of the batch did."""
        return self.total - self.own

    @property
    def cancellation(self) -> Tensor:
        """1 - |total| / (|positive| + |negative|): 0 one sign only, 1 the signs undo each other."""
        gross = self.positive.abs() + self.negative.abs()
        net = self.total.abs() / gross.clamp(min=torch.finfo(gross.dtype).tiny)
        return torch.where(gross > 0, 1 - net, 0.0)

    def cpu(self) -> Coupling:
        return Coupling(
            own=self.own.cpu(),
            parts={part: values.cpu() for part, values in self.parts.items()},
            total=self.total.cpu(),
            positive=self.positive.cpu(),
            negative=self.negative.cpu(),
        )


@torch.no_grad()
def decompose(
    hidden: Tensor,
    unembedding: Tensor,
    tokens: Tensor,
    advantages: Tensor,
    groups: Tensor,
    *,
    eta: float = 1.0,
) -> Coupling:
    """Exact, for hidden [N, D], unembedding [V, D] and tokens, advantages, groups [N].

    bfloat16 inputs are computed in float32; float64 stays float64.
    """
    check_tokens(hidden, unembedding, tokens, advantages, groups)
    batch = _Batch(hidden, unembedding, tokens, advantages)
    everything = batch.empty_M()
    own, by_any = torch.empty_like(batch.A_N2), torch.empty_like(batch.A_N2)

    def gather(places: Tensor, R: Tensor, H: Tensor) -> None:
        _add(everything, R, H, batch.A_N2[places])

    def spread(places: Tensor, R: Tensor, H: Tensor) -> None:
        own[places] = batch.A_N2[places] * _own(R, H)
        by_any[places] = _apply(everything, R, H) - own[places]

    query = torch.unique(groups, return_inverse=True)[1]
    by_token = _sums_within(batch, tokens.long(), gather)  # first, so that `everything` is whole
    by_query = _sums_within(batch, query, spread)
    by_both = _sums_within(batch, query * len(unembedding) + tokens.long())

    scale = eta / len(tokens)
    parts: dict[Part, Tensor] = {}
    names: tuple[Sign, Sign] = ("positive", "negative")
    for sign, name in enumerate(names):
        any_, token, query_, both = (x[:, sign] for x in (by_any, by_token, by_query, by_both))
        parts["same", "same", name] = scale * both
        parts["same", "other", name] = scale * (token - both)
        parts["other", "same", name] = scale * (query_ - both)
        parts["other", "other", name] = scale * (any_ - token - query_ + both)
    signed = scale * (by_any + own)
    return Coupling(
        own=scale * own.sum(dim=1),
        parts=parts,
        total=signed.sum(dim=1),
        positive=signed[:, 0],
        negative=signed[:, 1],
    )


class _Batch:
    """The tokens, and their errors on demand."""

    def __init__(self, hidden: Tensor, W: Tensor, tokens: Tensor, advantages: Tensor) -> None:
        self.dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        self.hidden, self.W, self.tokens = hidden, W.to(self.dtype), tokens.long()
        A_N = advantages.to(hidden.device, self.dtype)
        self.A_N2 = torch.stack((A_N.clamp(min=0), A_N.clamp(max=0)), dim=1)  # by sign
        self.chunk = max(BLOCK, CHUNK_ELEMENTS // len(W))
        V, D = W.shape
        self.few = max(2, 3 * V * D // (V + D))  # up to here a kernel is cheaper than an M

    def errors(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """(R [n, V], H [n, D])"""
        H = self.hidden[places].to(self.dtype)
        return errors(H, self.W, self.tokens[places]), H

    def empty_M(self) -> Tensor:
        """[V, 2D]: M of the positive and of the negative tokens, side by side."""
        return self.W.new_zeros(len(self.W), 2 * self.W.shape[1])


def _sums_within(batch: _Batch, key_N: Tensor, visit: Visit | None = None) -> Tensor:
    """[N, 2]: what tokens of equal key do to each other, by the sign of the one that pushes."""
    order = key_N.argsort(stable=True)
    sizes = torch.unique_consecutive(key_N[order], return_counts=True)[1].tolist()
    sums = torch.zeros_like(batch.A_N2)
    for start, members in _runs(sizes, batch.chunk):
        places = order[start : start + sum(members)]
        if len(places) > batch.chunk:
            sums[places] = _by_matrix_in_chunks(batch, places, visit)
            continue
        R, H = batch.errors(places)
        if visit:
            visit(places, R, H)
        A, key = batch.A_N2[places], key_N[places]
        at = 0
        for _, block in _runs(members, BLOCK):
            part = slice(at, at := at + sum(block))
            small = sum(block) <= max(batch.few, BLOCK)
            sums[places[part]] = (
                _by_kernel(R[part], H[part], A[part], key[part])
                if small
                else _by_matrix(batch, R[part], H[part], A[part])
            )
    return sums


def _runs(sizes: list[int], most: int) -> Iterator[tuple[int, list[int]]]:
    """(start, sizes) of consecutive whole sets, together at most `most` tokens, or one set alone.

    Example:
        >>> list(_runs([2, 1, 7, 1], most=4))
        [(0, [2, 1]), (3, [7]), (10, [1])]
    """
    start, total = 0, 0
    members: list[int] = []
    for size in sizes:
        if members and total + size > most:
            yield start, members
            start, total, members = start + total, 0, []
        members.append(size)
        total += size
    if members:
        yield start, members


def _by_kernel(R: Tensor, H: Tensor, A: Tensor, key: Tensor) -> Tensor:
    K = (R @ R.T) * (H @ H.T)
    K *= key[:, None] == key[None]
    K.fill_diagonal_(0)
    return K @ A


def _by_matrix(batch: _Batch, R: Tensor, H: Tensor, A: Tensor) -> Tensor:
    M = batch.empty_M()
    _add(M, R, H, A)
    return _apply(M, R, H) - A * _own(R, H)


def _by_matrix_in_chunks(batch: _Batch, places: Tensor, visit: Visit | None) -> Tensor:
    """One set larger than a chunk: its errors are computed twice, once to build M, once to use."""
    M = batch.empty_M()
    for part in places.split(batch.chunk):
        R, H = batch.errors(part)
        _add(M, R, H, batch.A_N2[part])
    sums = []
    for part in places.split(batch.chunk):
        R, H = batch.errors(part)
        if visit:
            visit(part, R, H)
        sums.append(_apply(M, R, H) - batch.A_N2[part] * _own(R, H))
    return torch.cat(sums)


def _add(M: Tensor, R: Tensor, H: Tensor, A: Tensor) -> None:
    """M += sum_k A_k r_k h_k^T, positives into the left half, negatives into the right."""
    for sign, half in enumerate(M.chunk(2, dim=1)):
        chosen = A[:, sign].nonzero().squeeze(1)
        half.addmm_(R[chosen].T, A[chosen, sign, None] * H[chosen])


def _apply(M: Tensor, R: Tensor, H: Tensor) -> Tensor:
    """r_j^T M h_j for both halves: [n, 2]."""
    n, D = H.shape
    return torch.einsum("nsd,nd->ns", (R @ M).view(n, 2, D), H)


def _own(R: Tensor, H: Tensor) -> Tensor:
    """|r_j|^2 |h_j|^2: [n, 1]."""
    return (R.square().sum(dim=1) * H.square().sum(dim=1)).unsqueeze(1)
