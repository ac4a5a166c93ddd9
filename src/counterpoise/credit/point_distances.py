"""How far apart clouds of points are, by the L2 distances C between their points.

    transport  <P, C>,  P the plan of least <P, C> + eps KL(P | a b^T) with marginals a and b
    sides      mean over x of min_y C_xy, and mean over y of min_x C_xy; half their sum is the
               chamfer distance
    means      mean of C_xy, of which an MMD is made: with the kernel -|x - y| its square is
               2 mean(x, y) - mean(x, x) - mean(y, y), the energy distance

All take B pairs at once. `transport_cost` takes clouds, [B, n, m]. The other two take the distances of
sequences, [B, T, U], and compare every span of one with every span of the other: overlapping spans
share C. A sequence shorter than T goes on with its last point, which changes no least; `span_token_shares`
keep what it goes on with out of the means, and spans that begin beyond its own are to be ignored.

The plan is diag(u) K diag(v), K = exp(-C / eps), by Sinkhorn's iterations, which scale rows and
columns in turn. What of C belongs to a row or a column alone is taken out of K first, so that each
has an entry of 1; the pairs whose u or v still leave float32 are done again in logarithms, at ten
times the cost: no blur is too small.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def transport_cost(C: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int) -> Tensor:
    """[B]; masses a [B, n] and b [B, m] sum to 1, those of padding are 0.

    The columns' marginals are exact, the rows' as good as the iterations make them.
    """
    rest = C - C.amin(dim=2, keepdim=True)
    in_column = rest.amin(dim=1, keepdim=True)
    K = (rest - in_column).div_(-eps).exp_()
    v = (b[:, None, :] * (in_column / -eps).exp()).mT  # the plan begins as a b^T exp(-C / eps)
    for _ in range(iterations):
        u = a[:, :, None] / (K @ v)
        v = b[:, :, None] / (K.mT @ u)
    d = (K * C @ v).mul_(u).sum(dim=(1, 2))
    lost = ~d.isfinite()
    if lost.any():
        d[lost] = _log_domain_transport_cost(C[lost], a[lost], b[lost], eps, iterations)
    return d


def _log_domain_transport_cost(
    C: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int
) -> Tensor:
    log_a, log_b = a.log()[:, :, None], b.log()[:, None, :]
    nearness = C / -eps
    g = log_b
    for _ in range(iterations):
        f = log_a - torch.logsumexp(nearness + g, dim=2, keepdim=True)
        g = log_b - torch.logsumexp(nearness + f, dim=1, keepdim=True)
    plan = (nearness + f + g).exp_()
    return (plan * C).sum(dim=(1, 2))


# -- all spans of two sequences ------------------------------------------------------------------


def span_starts(length: int, width: int, stride: int) -> range:
    """Where the spans of a sequence begin; the last one ends with it, and may be shorter.

    Example:
        >>> list(starts(160, 100, 25)), list(starts(7, 100, 25))
        ([0, 25, 50, 75], [0])
    """
    return range(0, max(1, length - width + stride), stride)


def span_token_shares(lengths_B: Tensor, longest: int, width: int, stride: int) -> Tensor:
    """[B, T, K]: of span k, 1 / its length at its tokens, 0 elsewhere."""
    at_T = torch.arange(longest, device=lengths_B.device)
    start_K = torch.tensor(span_starts(longest, width, stride), device=lengths_B.device)
    offset = at_T[:, None] - start_K
    inside = (offset >= 0) & (offset < width) & (at_T < lengths_B[:, None])[:, :, None]
    return inside / inside.sum(dim=1, keepdim=True).clamp(min=1)


def chamfer_sides(
    C: Tensor, x: Tensor, y: Tensor, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """From x and from y, each [B, K, L]; x [B, T, K] and y [B, U, L] are the shares."""
    near = -C
    from_x = x.mT @ span_maxima(near, width, stride)
    from_y = span_maxima(near.mT, width, stride).mT @ y
    return from_x.neg_(), from_y.neg_()


def mean_distances(C: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """[B, K, L], by the shares as above."""
    return x.mT @ (C @ y)


def span_maxima(x: Tensor, width: int, stride: int) -> Tensor:
    """[B, R, T] -> [B, R, K]: the largest of every span."""
    return F.max_pool1d(x, min(width, x.shape[2]), stride, ceil_mode=True)
