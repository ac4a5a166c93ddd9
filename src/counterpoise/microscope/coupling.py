"""Who pushed token j: the output-layer displacement of eq. 9, split exactly, in linear time.

    delta_j = (eta / N) sum_k A_k <h_j, h_k> <r_j, r_k>,       r_j = e_{o_j} - pi_j
            = (eta / N) r_j^T M h_j,                           M = sum_k A_k r_k h_k^T   [V, D]

Because M is a sum over tokens, every share of delta_j is the same expression with fewer tokens in
M: those of positive rollouts, of j's query, with j's own token. For a set of n tokens that push
each other there are two exact ways, and the cheaper one is taken:

    n small   the kernel itself, <h_j, h_k> * <r_j, r_k>       2 n^2 (V + D) FLOP
    n large   build M of the set, then r_j^T M h_j             6 n V D, linear in n; from n = 3 D on

so no N x N kernel is ever formed. M of all tokens gives what everything does. The kernel of a query
gives what its tokens do and, where tokens are equal, what those of them do; sets of equal tokens
give the rest. Each of the four by sign; the eight parts are their differences.

FLOP for N tokens in queries of n, sets of equal tokens in blocks of about b: logits 2 N V D, M
2 N V D, its use 4 N V D, kernels 2 N V (n + b). With V = 49,152, D = 576, N = 16,384, n = 1,024 and
b = 400 that is 6 TFLOP, 10 ms at 600 TFLOP/s, and in half precision 14 GB of errors are moved,
4 ms at 3.5 TB/s.

`microscope/pairs.py` is the same kernel for chosen pairs, and says where eq. 10 is incomplete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from counterpoise.microscope.batch_tokens import check_tokens
from counterpoise.model.coupling_sets import Places
from counterpoise.model.coupling_sums import Walk
from counterpoise.model.residuals import Errors

SameOrOther = Literal["same", "other"]
Sign = Literal["positive", "negative"]
CouplingPart = tuple[SameOrOther, SameOrOther, Sign]  # (identity, query, sign)
SIGNS: tuple[Sign, Sign] = ("positive", "negative")


@dataclass(frozen=True, slots=True, eq=False)
class Coupling:
    """The displacement of every token [N], and where it came from. All values carry eta / N.

    Example:
        c.own[j] + sum(part[j] for part in c.parts.values()) == c.total[j]
        c.parts["same", "other", "negative"][j]    by equal tokens in failures of other queries
    """

    self_push: Tensor  # A_j |r_j|^2 |h_j|^2: the token's push on itself
    parts: dict[CouplingPart, Tensor]  # each [N]; the token itself is in none of them
    total: Tensor
    positive: Tensor  # by tokens with A > 0, the token itself included
    negative: Tensor

    @property
    def from_others(self) -> Tensor:
        """What the other tokens of the batch did."""
        return self.total - self.self_push

    @property
    def cancellation(self) -> Tensor:
        """1 - |total| / (|positive| + |negative|): 0 one sign only, 1 the signs undo each other."""
        gross = self.positive.abs() + self.negative.abs()
        net = self.total.abs() / gross.clamp(min=torch.finfo(gross.dtype).tiny)
        return torch.where(gross > 0, 1 - net, 0.0)

    def cpu(self) -> Coupling:
        """In one transfer."""
        whole = (self.self_push, self.total, self.positive, self.negative)
        own, total, positive, negative, *parts = torch.stack((*whole, *self.parts.values())).cpu()
        return Coupling(own, dict(zip(self.parts, parts, strict=True)), total, positive, negative)


def decompose(
    hidden: Tensor,
    unembedding: Tensor,
    tokens: Tensor,
    advantages: Tensor,
    groups: Tensor,
    *,
    eta: float = 1.0,
    precision: torch.dtype | None = None,
) -> Coupling:
    """For hidden [N, D], unembedding [V, D] and tokens, advantages, groups [N].

    Exact: bfloat16 inputs are computed in float32, float64 stays float64. Another `precision` is
    faster on a GPU; docs/microscope.md has what it costs.
    """
    check_tokens(hidden, unembedding, tokens, advantages, groups)
    with torch.no_grad():
        errors = Errors(hidden, unembedding, tokens, precision=precision)
    return decompose_residuals(errors, tokens, advantages, groups, eta=eta)


@torch.no_grad()
def decompose_residuals(
    residuals: Errors,
    tokens: Tensor,
    advantages: Tensor,
    groups: Tensor,
    *,
    eta: float = 1.0,
    targets: Places | None = None,
) -> Coupling:
    """`decompose` for errors that others use as well. Keys on the CPU spare a wait for a GPU.

    `targets` [n]: what is asked is who pushed these tokens; all tokens still push.
    """
    token_N = tokens.cpu().numpy().astype(np.int64)
    query_N = np.unique(groups.cpu().numpy(), return_inverse=True)[1].astype(np.int64)
    walk = Walk(residuals, advantages)
    everything = walk.matrix(walk.chunks(np.arange(len(token_N))))
    own, by_any = walk.zeros(), walk.zeros()

    def spread(places: Tensor, R: Tensor, H: Tensor, squares: Tensor) -> None:
        own[places] = walk.A_N2[places] * squares[..., None]
        by_any[places] = walk.apply(everything, R, H) - own[places]

    most = 4 * walk.few // 3 + walk.base  # a kernel gives both sums
    queries = walk.lay_out(query_N, most, _indices_sharing_key(query_N, targets))
    by_query, by_both = walk.sums_within(queries, (query_N, token_N), spread)
    if queries.large:  # no kernel was made from which equal tokens could be taken
        both_N = query_N * len(residuals.W) + token_N
        both = walk.lay_out(both_N, walk.few, np.concatenate(queries.large))
        by_both += walk.sums_within(both, (both_N,))[0]
    equal = walk.lay_out(token_N, walk.few, _indices_sharing_key(token_N, targets))
    (by_token,) = walk.sums_within(equal, (token_N,))
    scale = walk.unit * (eta / len(token_N))
    asked = slice(-1) if targets is None else residuals.here(targets)
    return _disjoint_parts(*(scale * x[asked] for x in (own, by_any, by_token, by_query, by_both)))


def _indices_sharing_key(key_N: Places, of: Places | None) -> Places | None:
    """Places of all tokens that share a key with one of these."""
    return None if of is None else np.flatnonzero(np.isin(key_N, key_N[of]))


def _disjoint_parts(
    own: Tensor, any_: Tensor, token: Tensor, query: Tensor, both: Tensor
) -> Coupling:
    """Sums over sets that contain one another [N, 2] -> sums over parts that do not overlap."""
    parts: dict[CouplingPart, Tensor] = {}
    for i, sign in enumerate(SIGNS):
        parts["same", "same", sign] = both[:, i]
        parts["same", "other", sign] = (token - both)[:, i]
        parts["other", "same", sign] = (query - both)[:, i]
        parts["other", "other", sign] = (any_ - token - query + both)[:, i]
    signed = any_ + own
    return Coupling(own.sum(dim=1), parts, signed.sum(dim=1), signed[:, 0], signed[:, 1])
