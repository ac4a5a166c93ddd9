"""Which tokens pushed token j: eq. 9's output-layer displacement, split exactly in linear time.

    delta_j = (eta / N) sum_k A_k <h_j, h_k> <r_j, r_k>,       r_j = e_{o_j} - pi_j
            = (eta / N) r_j^T M h_j,                           M = sum_k A_k r_k h_k^T   [V, D]

A_k may be any weight of token k's score. The monitor passes pulls, -dL/dlogp_k of the step: they
contain A, ratio, clip and average, and every other term of the loss. A KL, for example, can give a
pull the opposite sign of A.

Because M is a sum over tokens, every part of delta_j is the same expression with fewer tokens in
M: tokens with A > 0, tokens of j's group, tokens equal to j's. For a set of n tokens that push each
other there are two exact ways, and the cheaper one is used:

    n small   the kernel itself, <h_j, h_k> * <r_j, r_k>       2 n^2 (V + D) FLOP
    n large   build M of the set, then r_j^T M h_j             6 n V D, linear in n; from n = 3 D on

so no N x N kernel is ever formed. Every token j needs four sums, each for positive and for
negative A; the eight disjoint parts are their differences:

    the push of all tokens                           from M of the whole batch
    the push of the tokens of j's group              from the kernel of the group
    the push of the tokens equal to j in its group   from the same kernel
    the push of the tokens equal to j in any group   from the set of these tokens

FLOP for N tokens in groups of n, sets of equal tokens in blocks of about b: logits 2 N V D, M
2 N V D, its use 4 N V D, kernels 2 N V (n + b). With V = 49,152, D = 576, N = 16,384, n = 1,024 and
b = 400 that is 6 TFLOP, 10 ms at 600 TFLOP/s, and in half precision 14 GB of residuals are moved,
4 ms at 3.5 TB/s.

`microscope/pairs.py` has the same kernel for chosen pairs, and shows where eq. 10 is incomplete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from counterpoise.microscope.batch_tokens import check_tokens
from counterpoise.model.coupling_sets import TokenIndices
from counterpoise.model.coupling_sums import CouplingSums
from counterpoise.model.residuals import Residuals

SameOrOther = Literal["same", "other"]
Sign = Literal["positive", "negative"]
# (token, group, sign of A); columns of a run folder call the group a query, as the paper does.
CouplingPart = tuple[SameOrOther, SameOrOther, Sign]
SIGNS: tuple[Sign, Sign] = ("positive", "negative")


@dataclass(frozen=True, slots=True, eq=False)
class Coupling:
    """What one step adds to the log-probability of every token [N], and which tokens cause it.

    Example:
        c.self_push[j] + sum(part[j] for part in c.parts.values()) == c.total[j]
        c.parts["same", "other", "negative"][j]  # of equal tokens of other groups with A < 0
    """

    self_push: Tensor  # the token's push on itself
    parts: dict[CouplingPart, Tensor]  # each [N]; the token itself is in none of them
    total: Tensor
    positive: Tensor  # the push of tokens with A > 0, including the token itself
    negative: Tensor

    @property
    def from_others(self) -> Tensor:
        """The displacement caused by the other tokens of the batch."""
        return self.total - self.self_push

    @property
    def cancellation(self) -> Tensor:
        """1 - |total| / (|positive| + |negative|); 0 if only one sign pushes, 1 if they cancel."""
        gross = self.positive.abs() + self.negative.abs()
        net = self.total.abs() / gross.clamp(min=torch.finfo(gross.dtype).tiny)
        return torch.where(gross > 0, 1 - net, 0.0)

    def cpu(self) -> Coupling:
        """The same on the CPU, in one transfer."""
        summaries = (self.self_push, self.total, self.positive, self.negative)
        self_push, total, positive, negative, *part_rows = torch.stack(
            (*summaries, *self.parts.values())
        ).cpu()
        return Coupling(
            self_push, dict(zip(self.parts, part_rows, strict=True)), total, positive, negative
        )


def decompose(
    hidden: Tensor,
    unembedding: Tensor,
    tokens: Tensor,
    advantages: Tensor,
    groups: Tensor,
    *,
    eta: float = 1.0,
    softcap: float = 0.0,
) -> Coupling:
    """Split what one step does to every token's log-probability by the tokens that cause it.

    Pass the N tokens of a whole optimizer step, flat; at temperature T, pass hidden/T and
    softcap/T. Exact for the output layer: bfloat16 is computed in float32, float64 stays float64.
    On a GPU, `decompose_residuals` with float16 residuals is faster and changes `total` by 6e-4 to
    4e-3 of its size.

    Arguments:
        hidden        [N, D], the unembedding's inputs that predicted the tokens
        unembedding   [V, D], before the step
        tokens        [N], ids
        advantages    [N], of each token: A_i * w_{i,t}
        groups        [N], a number for each prompt
        eta           learning rate of a plain gradient step on the mean token loss
        softcap       c of models with logits c tanh(W h / c); 0: no cap

    Example:
        >>> hidden, W = torch.ones(2, 4), torch.zeros(2, 4)  # the same context twice
        >>> tokens, groups = torch.tensor([1, 1]), torch.tensor([0, 0])
        >>> coupling = decompose(hidden, W, tokens, torch.tensor([1.0, -1.0]), groups)
        >>> coupling.self_push.tolist(), coupling.from_others.tolist(), coupling.total.tolist()
        ([1.0, -1.0], [-1.0, 1.0], [0.0, 0.0])
    """
    check_tokens(hidden, unembedding, tokens, advantages, groups)
    with torch.no_grad():
        residuals = Residuals(hidden, unembedding, tokens, softcap=softcap)
    return decompose_residuals(residuals, tokens, advantages, groups, eta=eta)


@torch.no_grad()
def decompose_residuals(
    residuals: Residuals,
    tokens: Tensor,
    pulls: Tensor,
    groups: Tensor,
    *,
    eta: float = 1.0,
    targets: TokenIndices | None = None,
) -> Coupling:
    """`decompose`, given residuals that the caller has already computed.

    `pulls` [N] are the weights A of the tokens' scores. `targets` [n]: only the displacement of
    these tokens is returned; all tokens still push. Pass `tokens` and `groups` on the CPU: reading
    them from a GPU would wait for its queue.
    """
    token_N = tokens.cpu().numpy().astype(np.int64)
    group_N = np.unique(groups.cpu().numpy(), return_inverse=True)[1].astype(np.int64)
    coupling_sums = CouplingSums(residuals, pulls)
    matrix_of_all = coupling_sums.signed_matrix(coupling_sums.chunks(np.arange(len(token_N))))
    self_push_N2, by_any_N2 = coupling_sums.zeros(), coupling_sums.zeros()

    # Called for every block of residuals while it is in memory, so that the residuals [N, V] are
    # computed once for all sums.
    def add_block(places: Tensor, R: Tensor, H: Tensor, squares: Tensor) -> None:
        self_push_N2[places] = coupling_sums.A_N2[places] * squares[..., None]
        by_any_N2[places] = coupling_sums.apply_matrix(matrix_of_all, R, H) - self_push_N2[places]

    # A kernel gives the sums by group and by (group, token) at once.
    group_sets = coupling_sums.lay_out_sets(
        group_N, coupling_sums.nested_break_even_size, _indices_sharing_key(group_N, targets)
    )
    by_group, by_both = coupling_sums.sums_within(group_sets, (group_N, token_N), add_block)
    # Groups too large for a kernel went through M, which cannot tell equal tokens apart: their
    # (group, token) sets are summed separately.
    if group_sets.large_sets:
        group_and_token_N = group_N * len(residuals.W) + token_N
        both_sets = coupling_sums.lay_out_sets(
            group_and_token_N, coupling_sums.break_even_size, np.concatenate(group_sets.large_sets)
        )
        by_both += coupling_sums.sums_within(both_sets, (group_and_token_N,))[0]
    token_sets = coupling_sums.lay_out_sets(
        token_N, coupling_sums.break_even_size, _indices_sharing_key(token_N, targets)
    )
    (by_equal_tokens,) = coupling_sums.sums_within(token_sets, (token_N,))
    scale = coupling_sums.advantage_scale * (eta / len(token_N))
    # Sums have N + 1 entries; the last one collects the padding of the layout and is dropped.
    selection = slice(-1) if targets is None else residuals.to_device(targets)
    return _disjoint_parts(
        *(
            scale * sums[selection]
            for sums in (self_push_N2, by_any_N2, by_equal_tokens, by_group, by_both)
        )
    )


def _indices_sharing_key(key_N: TokenIndices, targets: TokenIndices | None) -> TokenIndices | None:
    """Indices of all tokens that share a key with one of the targets; None for all tokens."""
    return None if targets is None else np.flatnonzero(np.isin(key_N, key_N[targets]))


def _disjoint_parts(
    self_push: Tensor, by_any: Tensor, by_equal_tokens: Tensor, by_group: Tensor, by_both: Tensor
) -> Coupling:
    """Turn sums over nested sets [N, 2] into sums over disjoint parts, by inclusion-exclusion."""
    parts: dict[CouplingPart, Tensor] = {}
    for column, sign in enumerate(SIGNS):
        parts["same", "same", sign] = by_both[:, column]
        parts["same", "other", sign] = (by_equal_tokens - by_both)[:, column]
        parts["other", "same", sign] = (by_group - by_both)[:, column]
        parts["other", "other", sign] = (by_any - by_equal_tokens - by_group + by_both)[:, column]
    signed = by_any + self_push
    return Coupling(self_push.sum(dim=1), parts, signed.sum(dim=1), signed[:, 0], signed[:, 1])
