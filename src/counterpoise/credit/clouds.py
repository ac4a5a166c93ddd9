"""How far apart clouds of points are, by the L2 distances C between their points.

    transport  <P, C>,  P the plan of least <P, C> + eps KL(P | a b^T) with marginals a and b
    sides      mean over x of min_y C_xy, and mean over y of min_x C_xy; half their sum is the
               chamfer distance
    means      mean of C_xy, of which an MMD is made: with the kernel -|x - y| its square is
               2 mean(x, y) - mean(x, x) - mean(y, y), the energy distance

`transport` takes pairs of clouds [B, n, m]. The other two take the distances of two sequences
[T, U] and compare every span of one with every span of the other: overlapping spans share C.

The plan is diag(u) K diag(v), K = exp(-C / eps), by Sinkhorn's iterations, which scale rows and
columns in turn. What of C belongs to a row or a column alone is taken out of K first, so that each
has an entry of 1; the pairs whose u or v still leave float32 are done again in logarithms, at ten
times the cost: no blur is too small.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def transport(C: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int) -> Tensor:
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
        d[lost] = _in_logarithms(C[lost], a[lost], b[lost], eps, iterations)
    return d


def _in_logarithms(C: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int) -> Tensor:
    log_a, log_b = a.log()[:, :, None], b.log()[:, None, :]
    nearness = C / -eps
    g = log_b
    for _ in range(iterations):
        f = log_a - torch.logsumexp(nearness + g, dim=2, keepdim=True)
        g = log_b - torch.logsumexp(nearness + f, dim=1, keepdim=True)
    plan = (nearness + f + g).exp_()
    return (plan * C).sum(dim=(1, 2))


# -- all spans of two sequences ------------------------------------------------------------------


def starts(length: int, width: int, stride: int) -> range:
    """Where the spans of a sequence begin; the last one ends with it, and may be shorter.

    Example:
        >>> list(starts(160, 100, 25)), list(starts(7, 100, 25))
        ([0, 25, 50, 75], [0])
    """
    return range(0, max(1, length - width + stride), stride)


def sides(C: Tensor, width: int, stride: int) -> tuple[Tensor, Tensor]:
    """From x and from y, each [K, L] for the K spans of the T points and the L of the U."""
    from_x = over_spans(least_of_spans(C, width, stride).mT, width, stride).mT
    from_y = over_spans(least_of_spans(C.mT, width, stride).mT, width, stride)
    return from_x, from_y


def means(C: Tensor, width: int, stride: int) -> Tensor:
    """[K, L]"""
    return over_spans(over_spans(C, width, stride).mT, width, stride).mT


def least_of_spans(x: Tensor, width: int, stride: int) -> Tensor:
    """[R, T] -> [R, K]: the least of every span."""
    return -F.max_pool1d(_filled(-x, width, stride, -torch.inf)[None], width, stride)[0]


def over_spans(x: Tensor, width: int, stride: int) -> Tensor:
    """[R, T] -> [R, K]: the mean of every span."""
    T = x.shape[1]
    lengths = [min(width, T - start) for start in starts(T, width, stride)]
    sums = F.avg_pool1d(_filled(x, width, stride, 0.0)[None], width, stride)[0] * width
    return sums / torch.tensor(lengths, device=x.device)


def _filled(x: Tensor, width: int, stride: int, value: float) -> Tensor:
    """Up to the end of a last span of full width."""
    T = x.shape[1]
    end = starts(T, width, stride)[-1] + width
    return F.pad(x, (0, end - T), value=value)
