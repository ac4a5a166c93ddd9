"""SHEAR: credit goes where the hidden states of right and wrong rollouts diverge. arXiv:2604.23318

    S_k   = `width` tokens of a rollout, the next span starting `stride` later; P_k their states
    d_k   = min over spans l of the group's rollouts with the other outcome of  dist(P_k, P_l)
    w_t   = max_{k: t in S_k} d_k / n,                n = mean |h| over the tokens of the group

Reasoning that a rollout of the other outcome shares has w near 0, so common beginnings drop out.
As in the paper, weights are not normalised to a mean of 1. Hidden states are those before the
unembedding.

distance  wasserstein (the paper's; by Sinkhorn), chamfer or mmd; the paper's ablation puts them
          within 0.2 points. The kernel of its MMD was not found: here -|x - y|, which needs no
          bandwidth (`credit/point_distances.py`).
width     100 (the paper's), but at most a quarter of the batch's median response: a span of 100
          would be the whole of a shorter one, and a single weight cannot tell tokens apart. At
          least 4 tokens. stride: a quarter of width, as in the paper. 0 stands for these values.
          The last span ends with the rollout; a rollout no longer than width is one span.
blur      eps / n. The paper's eps was not found, only that eps ln(width) is about 20.8, so eps is
          about 4.5, in units that differ between models; 0.05 and 50 iterations are chosen here.
          dist is <P, C>, the cost of the plan P that Sinkhorn finds, without the entropy term.
No rollout of the other outcome: 1.

The minimum is searched with a bound. No mass can travel less than the distance to its nearest
point, so neither side of the chamfer distance exceeds <P, C>: only pairs of spans for which both
are below the best cost so far go to Sinkhorn. Pairs of rows (for the bound) and pairs of spans are
batched across groups, as many as fit `PAIR_MEMORY`, because on a GPU one pair takes less time than
launching its kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
PAIR_MEMORY = {"cpu": 1 << 26, "cuda": 1 << 31}  # bytes for the pairs of one batch
PUBLISHED_WIDTH, SHORTEST_SPAN = 100, 4  # tokens of a span
SPAN_OVERLAP = 4  # spans that contain a token: the paper's 100 / 25
SPANS_PER_RESPONSE = 4  # of the median response, without overlap
EXACT_CDIST_POINTS = 25  # up to here cdist subtracts points; beyond, it uses less exact products

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HiddenSpans:
    """S spans over the N tokens of the view, with hidden states scaled by the n of their group."""

    flat_N: Tensor  # [N, D], hidden states
    start_R: IndexArray  # a row's first token among the N
    length_R: IndexArray
    scale_R: Tensor  # n of the row's group
    first_span_R: IndexArray  # a row's first span
    num_spans_R: IndexArray
    row_S: Tensor  # the row of a span
    token_index: Tensor  # [S, w] among the N tokens, padded with the span's last token
    mass: Tensor  # [S, w], 1 / length, 0 for padding

    def points(self, rows_B: Tensor, token_index: Tensor) -> Tensor:
        """Scaled hidden states [B, w, D] at `token_index` [B, w], in float32."""
        return self.flat_N[token_index].float().div_(self.scale_R[rows_B, None, None])


@torch.no_grad()
def weights(
    view: CreditView,
    *,
    distance: str = "wasserstein",
    width: int = 0,
    stride: int = 0,
    blur: float = 0.05,
    iterations: int = 50,
) -> list[Floats]:
    """Token weights of every row, by the distance of its spans to the other outcome."""
    if distance not in DISTANCE_NAMES:
        raise PoiseError(f"shear: distance is one of {', '.join(DISTANCE_NAMES)}, not '{distance}'")
    if not view.rows:
        return []
    width = width or automatic_width([row.num_tokens for row in view.rows])
    stride = stride or max(1, width // SPAN_OVERLAP)
    if not 1 <= stride <= width or not blur > 0 or iterations < 1:
        raise PoiseError(
            "shear: set stride to 1 up to width, blur above 0 and iterations to 1 or more, "
            f"not {stride}, {blur:g} and {iterations} with a width of {width}"
        )
    opposed_rows = [
        (i, j)
        for group in view.groups
        for i in group
        for j in group
        if view.rows[i].sign > 0 > view.rows[j].sign
    ]
    if not opposed_rows:
        return unit_weights(view.rows)
    spans = cut_spans(view, width, stride)
    pairs, distances = opposed_span_distances(
        spans, np.array(opposed_rows), distance, width, stride
    )
    if distance == "wasserstein":
        distances = nearest_transport_costs(spans, pairs, distances, blur, iterations)
    distance_S = nearest_distances(len(spans.mass), pairs, distances)
    distance_S = torch.where(distance_S.isinf(), 1.0, distance_S)  # no rollout of the other outcome
    # A token takes the largest distance of the spans that contain it; padding is left out.
    inside = spans.mass > 0
    weights_N = torch.zeros(sum(row.num_tokens for row in view.rows), device=distance_S.device)
    weights_N.scatter_reduce_(
        0, spans.token_index[inside], distance_S[:, None].expand_as(inside)[inside], "amax"
    )
    return split_tokens(weights_N.cpu().numpy(), view.rows)


def automatic_width(lengths_R: Sequence[int]) -> int:
    """The paper's width, or a quarter of the median length if that is less.

    Example:
        >>> automatic_width([40, 64, 80]), automatic_width([900, 1000]), automatic_width([2, 3])
        (16, 100, 4)
    """
    return max(SHORTEST_SPAN, min(PUBLISHED_WIDTH, int(np.median(lengths_R)) // SPANS_PER_RESPONSE))


def cut_spans(view: CreditView, width: int, stride: int) -> HiddenSpans:
    """Cut every row into overlapping spans."""
    length_R = np.array([row.num_tokens for row in view.rows])
    start_R = np.cumsum(length_R) - length_R
    starts = [point_distances.span_starts(length, width, stride) for length in length_R.tolist()]
    num_spans_R = np.array([len(row_starts) for row_starts in starts])
    row_S = np.repeat(np.arange(len(starts)), num_spans_R)
    start_S = start_R[row_S] + np.concatenate(starts)
    final_S = np.minimum(start_S + width, (start_R + length_R)[row_S]) - 1
    token_index = start_S[:, None] + np.arange(int((final_S - start_S).max()) + 1)
    mass = (token_index <= final_S[:, None]) / (final_S - start_S + 1)[:, None]
    flat_N = torch.cat(view.hidden)
    device = flat_N.device
    return HiddenSpans(
        flat_N=flat_N,
        start_R=start_R,
        length_R=length_R,
        scale_R=torch.from_numpy(group_scales(view, flat_N, length_R)).to(device),
        first_span_R=np.cumsum(num_spans_R) - num_spans_R,
        num_spans_R=num_spans_R,
        row_S=torch.from_numpy(row_S).to(device),
        token_index=torch.from_numpy(np.minimum(token_index, final_S[:, None])).to(device),
        mass=torch.from_numpy(mass.astype(np.float32)).to(device),
    )


def group_scales(view: CreditView, hidden_N: Tensor, length_R: IndexArray) -> Floats:
    """n of each row's group: [R]."""
    dtype = torch.promote_types(hidden_N.dtype, torch.float32)  # float64 must not be narrowed
    norm_N = torch.linalg.vector_norm(hidden_N, dim=1, dtype=dtype).double().cpu().numpy()
    group_R = view.group_numbers_R
    group_N = np.repeat(group_R, length_R)
    mean_norms = np.bincount(group_N, weights=norm_N) / np.bincount(group_N)
    return np.maximum(mean_norms, 1e-30).astype(np.float32)[group_R]


def opposed_span_distances(
    spans: HiddenSpans, opposed: IndexArray, distance: str, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Pairs of spans [P, 2] of opposed rows and their distance [P], or its bound if wasserstein."""
    pairs, distances = span_pair_distances(spans, opposed, distance, width, stride)
    if distance == "mmd":
        # The energy distance also needs the mean distance within each span.
        rows = np.unique(opposed)
        own_pairs, own_means = span_pair_distances(
            spans, np.stack((rows, rows), axis=1), distance, width, stride
        )
        same_span = own_pairs[:, 0] == own_pairs[:, 1]
        own_mean_S = distances.new_zeros(len(spans.mass))
        own_mean_S[own_pairs[same_span, 0]] = own_means[same_span]
        distances = (2 * distances - own_mean_S[pairs].sum(dim=1)).clamp(min=0).sqrt()
    return pairs, distances


def span_pair_distances(
    spans: HiddenSpans, rows: IndexArray, distance: str, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Pairs of spans and their distances, for pairs of rows [B, 2]; for mmd the mean distances."""
    span_pairs, pair_distances = [], []
    for batch in row_pair_batches(spans, rows):
        left_rows, right_rows = batch.T
        (left_points, left_shares), (right_points, right_shares) = (
            padded_row_points(spans, side, width, stride) for side in (left_rows, right_rows)
        )
        C = torch.cdist(left_points, right_points)
        if distance == "mmd":
            distance_BKL = point_distances.mean_distances(C, left_shares, right_shares)
        else:
            from_left, from_right = point_distances.chamfer_sides(
                C, left_shares, right_shares, width, stride
            )
            # Both sides bound the transport cost from below, so its bound is the larger one.
            is_chamfer = distance == "chamfer"
            distance_BKL = (
                (from_left + from_right) / 2 if is_chamfer else from_left.maximum(from_right)
            )
        span_K, span_L = (np.arange(size) for size in distance_BKL.shape[1:])
        exists_K = span_K < spans.num_spans_R[left_rows, None]
        exists_L = span_L < spans.num_spans_R[right_rows, None]
        # Rows are padded to the longest of the batch: spans beyond a row's own are dropped.
        exists = exists_K[:, :, None] & exists_L[:, None, :]
        pair_index, left_span, right_span = exists.nonzero()
        span_pairs.append(
            np.stack(
                (
                    spans.first_span_R[left_rows[pair_index]] + left_span,
                    spans.first_span_R[right_rows[pair_index]] + right_span,
                ),
                axis=1,
            )
        )
        pair_distances.append(
            distance_BKL.flatten()[torch.from_numpy(np.flatnonzero(exists)).to(distance_BKL.device)]
        )
    all_pairs = torch.from_numpy(np.concatenate(span_pairs)).to(spans.flat_N.device)
    return all_pairs, torch.cat(pair_distances)


def row_pair_batches(spans: HiddenSpans, rows: IndexArray) -> Iterator[IndexArray]:
    """Pairs of rows in batches of similar length, as many as fit in memory."""
    longest_B = spans.length_R[rows].max(axis=1)
    by_length = np.argsort(-longest_B, kind="stable")
    rows, longest_B = rows[by_length], longest_B[by_length]
    D, start = spans.flat_N.shape[1], 0
    while start < len(rows):
        T = int(longest_B[start])
        end = start + max(1, PAIR_MEMORY[spans.flat_N.device.type] // (4 * T * (6 * D + 6 * T)))
        # cdist changes its method with the size: a batch must not mix pairs from both sides, or a
        # distance would depend on which pairs are computed together.
        if T > EXACT_CDIST_POINTS:
            end = min(end, int((longest_B > EXACT_CDIST_POINTS).sum()))
        yield rows[start:end]
        start = end


def padded_row_points(
    spans: HiddenSpans, rows: IndexArray, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Points [B, T, D] of whole rows, padded with the last, and the token shares of their spans."""
    length_B, device = spans.length_R[rows], spans.flat_N.device
    T = int(length_B.max())
    token_index = spans.start_R[rows, None] + np.minimum(np.arange(T), length_B[:, None] - 1)
    points = spans.points(
        torch.from_numpy(rows).to(device), torch.from_numpy(token_index).to(device)
    )
    return points, point_distances.span_token_shares(
        torch.from_numpy(length_B).to(device), T, width, stride
    )


def nearest_transport_costs(
    spans: HiddenSpans, pairs: Tensor, bound: Tensor, blur: float, iterations: int
) -> Tensor:
    """Transport cost of every pair that can be nearest, inf for the others: [number of pairs]."""
    costs = torch.full_like(bound, torch.inf)
    best_S = nearest_distances(len(spans.mass), pairs, bound)
    # Pairs with a span's smallest bound give good costs early; the others are computed only where
    # their bound does not rule them out already.
    likely = (bound[:, None] == best_S[pairs]).any(dim=1)
    costs[likely] = transport_costs(spans, pairs[likely], blur, iterations)
    best_S = nearest_distances(len(spans.mass), pairs, costs)
    undecided = (bound[:, None] < best_S[pairs]).any(dim=1) & ~likely
    costs[undecided] = transport_costs(spans, pairs[undecided], blur, iterations)
    return costs


def transport_costs(spans: HiddenSpans, pairs: Tensor, blur: float, iterations: int) -> Tensor:
    """Transport cost <P, C> of every pair: [number of pairs], computed a few pairs at a time."""
    width, D = spans.mass.shape[1], spans.flat_N.shape[1]
    budget = PAIR_MEMORY[pairs.device.type] // 8  # float32 numbers for points, as many for plans
    costs = []
    for plan_pairs in pairs.split(max(1, budget // (4 * width * width))):
        distances = []
        for point_pairs in plan_pairs.split(max(1, budget // (2 * width * D))):
            left_points, right_points = (
                spans.points(spans.row_S[span_side], spans.token_index[span_side])
                for span_side in point_pairs.unbind(dim=1)
            )
            distances.append(torch.cdist(left_points, right_points))
        left_mass, right_mass = spans.mass[plan_pairs].unbind(dim=1)
        costs.append(
            point_distances.transport_cost(
                torch.cat(distances), left_mass, right_mass, blur, iterations
            )
        )
    return torch.cat(costs)


def nearest_distances(num_spans: int, pairs: Tensor, values: Tensor) -> Tensor:
    """Smallest distance of every span [S], on either side of a pair; inf without any pair."""
    best_S = values.new_full((num_spans,), torch.inf)
    for side in pairs.unbind(dim=1):
        best_S.scatter_reduce_(0, side, values, "amin")
    return best_S
