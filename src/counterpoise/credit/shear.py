"""SHEAR: credit where right and wrong reasoning part, by hidden states. arXiv:2604.23318

    S_k   = `width` tokens of a rollout, the next span `stride` further on; P_k their hidden states
    d_k   = min over spans l of rollouts of the other outcome in the group of  dist(P_k, P_l)
    w_t   = max_{k: t in S_k} d_k / n,                n = mean |h| over the tokens of the group

What a rollout of the other outcome also thinks has w near 0: shared beginnings fall out. Not
normalised to a mean of 1, as in the paper. The hidden states are those before the unembedding.

distance  wasserstein (the paper's; by Sinkhorn), chamfer or mmd, which its ablation puts within 0.2
          points. The kernel of its MMD was not found: here -|x - y|, which needs no bandwidth
          (`credit/point_distances.py`).
width 100, stride 25: the paper's. The last span ends with the rollout; a short rollout is one span.
blur      eps / n. Found is only that eps ln 100 is about 20.8, in a unit that models do not share;
          0.05, and 50 iterations: chosen here. W_eps is <P, C>, without the entropy.
No rollout of the other outcome: 1.

The minimum is searched with a bound. No mass can go nearer than to its nearest point, so neither
side of the chamfer distance exceeds <P, C>: only pairs of spans for which both lie below the best
found so far are handed to Sinkhorn. Pairs of rows, for the bound, and pairs of spans are worked on
as many at a time as fit `PAIR_MEMORY`, whichever groups they are of: on a GPU a pair costs less than the
launch of its kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit import point_distances
from counterpoise.credit.coupling_pushes import split_tokens
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.types import Floats

DISTANCE_NAMES = ("wasserstein", "chamfer", "mmd")
PAIR_MEMORY = {"cpu": 1 << 26, "cuda": 1 << 31}  # bytes of the pairs that are in work
EXACT_CDIST_POINTS = (
    25  # points: up to here cdist subtracts them, beyond it multiplies matrices, less exactly
)

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HiddenSpans:
    """S spans over the N tokens of the view, in units of n of their group."""

    flat_N: Tensor  # [N, D], hidden states
    start_R: IndexArray  # of a row's tokens among the N
    length_R: IndexArray
    scale_R: Tensor  # n
    first_span_R: IndexArray  # a row's first span
    num_spans_R: IndexArray  # and how many
    row_S: Tensor  # whose a span is
    token_index: Tensor  # [S, w] among the N tokens, padded with the span's last
    mass: Tensor  # [S, w], 1 / length, 0 for padding

    def points(self, rows_B: Tensor, places: Tensor) -> Tensor:
        """[B, w, D], in float32."""
        return self.flat_N[places].float().div_(self.scale_R[rows_B, None, None])


@torch.no_grad()
def weights(
    view: CreditView,
    *,
    distance: str = "wasserstein",
    width: int = 100,
    stride: int = 25,
    blur: float = 0.05,
    iterations: int = 50,
) -> list[Floats]:
    if distance not in DISTANCE_NAMES:
        raise PoiseError(f"shear: distance is one of {', '.join(DISTANCE_NAMES)}, not '{distance}'")
    if not 1 <= stride <= width or blur <= 0 or iterations < 1:
        raise PoiseError(
            "shear: stride must be 1 to width, blur above 0 and iterations 1 or more: "
            f"not {stride}, {blur:g} and {iterations} with a width of {width}"
        )
    opposed = [
        (i, j)
        for group in view.groups
        for i in group
        for j in group
        if view.rows[i].sign > 0 > view.rows[j].sign
    ]
    if not opposed:
        return unit_weights(view.rows)
    spans = cut_spans(view, width, stride)
    pairs, values = opposed_span_distances(spans, np.array(opposed), distance, width, stride)
    if distance == "wasserstein":
        values = nearest_transport_costs(spans, pairs, values, blur, iterations)
    d_S = nearest_distances(len(spans.mass), pairs, values)
    d_S = torch.where(d_S.isinf(), 1.0, d_S)  # nobody to compare with
    inside = spans.mass > 0
    w_N = torch.zeros(sum(row.num_tokens for row in view.rows), device=d_S.device)
    w_N.scatter_reduce_(
        0, spans.token_index[inside], d_S[:, None].expand_as(inside)[inside], "amax"
    )
    return split_tokens(w_N.cpu().numpy(), view.rows)


def cut_spans(view: CreditView, width: int, stride: int) -> HiddenSpans:
    length_R = np.array([row.num_tokens for row in view.rows])
    begin_R = np.cumsum(length_R) - length_R
    starts = [point_distances.span_starts(length, width, stride) for length in length_R.tolist()]
    count_R = np.array([len(of) for of in starts])
    row_S = np.repeat(np.arange(len(starts)), count_R)
    first_S = begin_R[row_S] + np.concatenate(starts)
    last_S = np.minimum(first_S + width, (begin_R + length_R)[row_S]) - 1
    places = first_S[:, None] + np.arange(int((last_S - first_S).max()) + 1)
    mass = (places <= last_S[:, None]) / (last_S - first_S + 1)[:, None]
    flat_N = torch.cat(view.hidden)
    here = flat_N.device
    return HiddenSpans(
        flat_N,
        begin_R,
        length_R,
        torch.from_numpy(group_scales(view, flat_N, length_R)).to(here),
        np.cumsum(count_R) - count_R,
        count_R,
        torch.from_numpy(row_S).to(here),
        torch.from_numpy(np.minimum(places, last_S[:, None])).to(here),
        torch.from_numpy(mass.astype(np.float32)).to(here),
    )


def group_scales(view: CreditView, flat_N: Tensor, length_R: IndexArray) -> Floats:
    """[R], n of a row's group."""
    norm_N = torch.linalg.vector_norm(flat_N, dim=1, dtype=torch.float32).double().cpu().numpy()
    group_R = np.empty(len(length_R), dtype=np.int64)
    for number, group in enumerate(view.groups):
        group_R[group] = number
    group_N = np.repeat(group_R, length_R)
    means = np.bincount(group_N, weights=norm_N) / np.bincount(group_N)
    return np.maximum(means, 1e-30).astype(np.float32)[group_R]


def opposed_span_distances(
    spans: HiddenSpans, opposed: IndexArray, distance: str, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Pairs of spans [P, 2] of opposed rows and their distance [P]; its bound for wasserstein."""
    pairs, values = span_pair_distances(spans, opposed, distance, width, stride)
    if distance == "mmd":
        rows = np.unique(opposed)
        twice, within = span_pair_distances(
            spans, np.stack((rows, rows), axis=1), distance, width, stride
        )
        itself = twice[:, 0] == twice[:, 1]
        within_S = values.new_zeros(len(spans.mass))
        within_S[twice[itself, 0]] = within[itself]
        values = (2 * values - within_S[pairs].sum(dim=1)).clamp(min=0).sqrt()
    return pairs, values


def span_pair_distances(
    spans: HiddenSpans, rows: IndexArray, distance: str, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """The same of any pairs of rows [B, 2], for mmd the means of which it is made."""
    pairs, values = [], []
    for part in row_pair_batches(spans, rows):
        one, other = part.T
        (x, in_x), (y, in_y) = (
            padded_row_points(spans, side, width, stride) for side in (one, other)
        )
        C = torch.cdist(x, y)
        if distance == "mmd":
            found = point_distances.mean_distances(C, in_x, in_y)
        else:
            from_x, from_y = point_distances.chamfer_sides(C, in_x, in_y, width, stride)
            found = (from_x + from_y) / 2 if distance == "chamfer" else from_x.maximum(from_y)
        at_K, at_L = (np.arange(n) for n in found.shape[1:])
        in_K = at_K < spans.num_spans_R[one, None]
        in_L = at_L < spans.num_spans_R[other, None]
        real = in_K[:, :, None] & in_L[:, None, :]
        n, first, second = real.nonzero()
        pairs.append(
            np.stack(
                (spans.first_span_R[one[n]] + first, spans.first_span_R[other[n]] + second), axis=1
            )
        )
        values.append(found.flatten()[torch.from_numpy(np.flatnonzero(real)).to(found.device)])
    return torch.from_numpy(np.concatenate(pairs)).to(spans.flat_N.device), torch.cat(values)


def row_pair_batches(spans: HiddenSpans, rows: IndexArray) -> Iterator[IndexArray]:
    """Pairs of rows of like length together, as many as fit."""
    longest_B = spans.length_R[rows].max(axis=1)
    order = np.argsort(-longest_B, kind="stable")
    rows, longest_B = rows[order], longest_B[order]
    D, at = spans.flat_N.shape[1], 0
    while at < len(rows):
        T = int(longest_B[at])
        end = at + max(1, PAIR_MEMORY[spans.flat_N.device.type] // (4 * T * (6 * D + 6 * T)))
        if T > EXACT_CDIST_POINTS:
            end = min(end, int((longest_B > EXACT_CDIST_POINTS).sum()))
        yield rows[at:end]
        at = end


def padded_row_points(
    spans: HiddenSpans, rows: IndexArray, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Points [B, T, D] of whole rows, the last one repeated, and the shares of their spans."""
    length_B, here = spans.length_R[rows], spans.flat_N.device
    T = int(length_B.max())
    places = spans.start_R[rows, None] + np.minimum(np.arange(T), length_B[:, None] - 1)
    points = spans.points(torch.from_numpy(rows).to(here), torch.from_numpy(places).to(here))
    return points, point_distances.span_token_shares(
        torch.from_numpy(length_B).to(here), T, width, stride
    )


def nearest_transport_costs(
    spans: HiddenSpans, pairs: Tensor, bound: Tensor, blur: float, iterations: int
) -> Tensor:
    """[P], <P, C> of the pairs that can be nearest, inf for the others."""
    d = torch.full_like(bound, torch.inf)
    best = nearest_distances(len(spans.mass), pairs, bound)
    likely = (bound[:, None] == best[pairs]).any(dim=1)
    d[likely] = transport_costs(spans, pairs[likely], blur, iterations)
    best = nearest_distances(len(spans.mass), pairs, d)
    open_ = (bound[:, None] < best[pairs]).any(dim=1) & ~likely
    d[open_] = transport_costs(spans, pairs[open_], blur, iterations)
    return d


def transport_costs(spans: HiddenSpans, pairs: Tensor, blur: float, iterations: int) -> Tensor:
    """[P], some pairs at a time."""
    w, D = spans.mass.shape[1], spans.flat_N.shape[1]
    half = PAIR_MEMORY[pairs.device.type] // 8  # numbers, for points and for plans
    found = []
    for part in pairs.split(max(1, half // (4 * w * w))):
        apart = []
        for few in part.split(max(1, half // (2 * w * D))):
            x, y = (
                spans.points(spans.row_S[of], spans.token_index[of]) for of in few.unbind(dim=1)
            )
            apart.append(torch.cdist(x, y))
        a, b = spans.mass[part].unbind(dim=1)
        found.append(point_distances.transport_cost(torch.cat(apart), a, b, blur, iterations))
    return torch.cat(found)


def nearest_distances(num_spans: int, pairs: Tensor, values: Tensor) -> Tensor:
    """[S], the least of every span, on either side; inf where it has none."""
    best = values.new_full((num_spans,), torch.inf)
    for side in pairs.unbind(dim=1):
        best.scatter_reduce_(0, side, values, "amin")
    return best
