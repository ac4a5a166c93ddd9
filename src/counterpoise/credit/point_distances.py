"""Distances between clouds of points, from the L2 distances C between their points.

    transport_cost    <P, C>,  P the plan of least <P, C> + eps KL(P | a b^T) with marginals a, b
    chamfer_sides     mean over x of min_y C_xy, and mean over y of min_x C_xy; half their sum is
                      the chamfer distance
    mean_distances    mean of C_xy, from which an MMD is computed: with the kernel -|x - y| its
                      square is 2 mean(x, y) - mean(x, x) - mean(y, y), the energy distance

All take B pairs at once. `transport_cost` takes clouds, [B, n, m]. The other two take the distances
between sequences, [B, T, U], and compare every span of one with every span of the other, because
overlapping spans share C. A sequence shorter than T is padded with its last point, which changes no
minimum; `span_token_shares` keeps the padding out of the means, and spans that start beyond the
sequence are to be ignored.

The plan is diag(u) K diag(v), K = exp(-C / eps), found by Sinkhorn's iterations, which scale rows
and columns in turn. Row and column minima of C are subtracted before the exponential so that every
row and column of K has an entry of 1. Pairs whose u or v still leave the range of float32 are
computed again in the log domain, at ten times the cost, so no eps is too small.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def transport_cost(C: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int) -> Tensor:
    """Entropic transport cost <P, C> of every pair: [B].

    Masses a [B, n] and b [B, m] sum to 1; padding has mass 0. Column marginals are exact, row
    marginals as accurate as the number of iterations makes them.
    """
    reduced_C = C - C.amin(dim=2, keepdim=True)
    column_minimum = reduced_C.amin(dim=1, keepdim=True)
    K = (reduced_C - column_minimum).div_(-eps).exp_()
    v = (b[:, None, :] * (column_minimum / -eps).exp()).mT  # first plan: a b^T exp(-C / eps)
    for _ in range(iterations):
        u = a[:, :, None] / (K @ v)
        v = b[:, :, None] / (K.mT @ u)
    cost_B = (K * C @ v).mul_(u).sum(dim=(1, 2))
    overflowed = ~cost_B.isfinite()
    if overflowed.any():
        cost_B[overflowed] = _log_domain_transport_cost(
            C[overflowed], a[overflowed], b[overflowed], eps, iterations
        )
    return cost_B


def _log_domain_transport_cost(
    C: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int
) -> Tensor:
    """The same cost by Sinkhorn iterations on log u and log v, which cannot overflow."""
    log_a, log_b = a.log()[:, :, None], b.log()[:, None, :]
    log_K = C / -eps
    g = log_b
    for _ in range(iterations):
        f = log_a - torch.logsumexp(log_K + g, dim=2, keepdim=True)
        g = log_b - torch.logsumexp(log_K + f, dim=1, keepdim=True)
    plan = (log_K + f + g).exp_()
    return (plan * C).sum(dim=(1, 2))


# -- every span of one sequence with every span of another ---------------------------------------


def span_starts(length: int, width: int, stride: int) -> range:
    """Start positions of the spans of a sequence; the last span ends with it and may be shorter.

    Example:
        >>> list(span_starts(160, 100, 25)), list(span_starts(7, 100, 25))
        ([0, 25, 50, 75], [0])
    """
    return range(0, max(1, length - width + stride), stride)


def span_token_shares(lengths_B: Tensor, longest: int, width: int, stride: int) -> Tensor:
    """[B, T, K]: 1 / length of span k at the tokens inside it, 0 elsewhere."""
    token_T = torch.arange(longest, device=lengths_B.device)
    start_K = torch.tensor(span_starts(longest, width, stride), device=lengths_B.device)
    offset = token_T[:, None] - start_K
    inside = (offset >= 0) & (offset < width) & (token_T < lengths_B[:, None])[:, :, None]
    return inside / inside.sum(dim=1, keepdim=True).clamp(min=1)


def chamfer_sides(
    C: Tensor, shares_x: Tensor, shares_y: Tensor, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Mean nearest distance from x and from y, each [B, K, L].

    shares_x [B, T, K] and shares_y [B, U, L] are the token shares of the spans.
    """
    # Minima over spans are max-pools of -C, which torch computes for all spans at once.
    negated_C = -C
    from_x = shares_x.mT @ span_maxima(negated_C, width, stride)
    from_y = span_maxima(negated_C.mT, width, stride).mT @ shares_y
    return from_x.neg_(), from_y.neg_()


def mean_distances(C: Tensor, shares_x: Tensor, shares_y: Tensor) -> Tensor:
    """Mean distance between every pair of spans [B, K, L]; shares as in `chamfer_sides`."""
    return shares_x.mT @ (C @ shares_y)


def span_maxima(values: Tensor, width: int, stride: int) -> Tensor:
    """[B, R, T] -> [B, R, K]: the largest value in every span."""
    return F.max_pool1d(values, min(width, values.shape[2]), stride, ceil_mode=True)
