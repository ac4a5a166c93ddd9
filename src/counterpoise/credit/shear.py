"""SHEAR: credit where right and wrong reasoning part, by hidden states. arXiv:2604.23318

    S_k   = `width` tokens of a rollout, the next span `stride` further on; P_k their hidden states
    d_k   = min over spans l of rollouts of the other outcome in the group of  dist(P_k, P_l)
    w_t   = max_{k: t in S_k} d_k / n,                n = mean |h| over the tokens of the group

What a rollout of the other outcome also thinks has w near 0: shared beginnings fall out. Not
normalised to a mean of 1, as in the paper. The hidden states are those before the unembedding.

distance  wasserstein (the paper's; by Sinkhorn), chamfer or mmd, which its ablation puts within 0.2
          points. The kernel of its MMD was not found: here -|x - y|, which needs no bandwidth
          (`credit/clouds.py`).
width 100, stride 25: the paper's. The last span ends with the rollout; a short rollout is one span.
blur      eps / n. Found is only that eps ln 100 is about 20.8, in a unit that models do not share;
          0.05, and 50 iterations: chosen here. W_eps is <P, C>, without the entropy.
No rollout of the other outcome: 1.

The minimum is searched with a bound. No mass can go nearer than to its nearest point, so neither
side of the chamfer distance exceeds <P, C>: only pairs of spans for which both lie below the best
found so far are handed to Sinkhorn, as many at a time as fit `MEMORY`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.credit import clouds
from counterpoise.credit.pushed import split
from counterpoise.credit.view import View, ones
from counterpoise.errors import PoiseError
from counterpoise.types import Floats

DISTANCES = ("wasserstein", "chamfer", "mmd")
MEMORY = {"cpu": 1 << 26, "cuda": 1 << 31}  # bytes of the pairs of spans that are in work


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """S spans over the N tokens of the view, in units of n of their group."""

    rows: list[Tensor]  # [T, D] each: hidden states
    unit_R: list[float]  # n
    of_R: list[range]  # which spans are a row's
    places: Tensor  # [S, w] among the N tokens, padded with the span's last
    mass: Tensor  # [S, w], 1 / length, 0 for padding

    def points(self, row: int) -> Tensor:
        return self.rows[row].float() / self.unit_R[row]


@torch.no_grad()
def weights(
    view: View,
    *,
    distance: str = "wasserstein",
    width: int = 100,
    stride: int = 25,
    blur: float = 0.05,
    iterations: int = 50,
) -> list[Floats]:
    if distance not in DISTANCES:
        raise PoiseError(f"shear: distance is one of {', '.join(DISTANCES)}, not '{distance}'")
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
        return ones(view.rows)
    spans = cut(view, width, stride)
    pairs, values = between_rows(spans, opposed, distance, width, stride)
    if distance == "wasserstein":
        values = by_plan(spans, pairs, values, blur, iterations)
    d_S = nearest(len(spans.mass), pairs, values)
    d_S = torch.where(d_S.isinf(), 1.0, d_S)  # nobody to compare with
    inside = spans.mass > 0
    w_N = torch.zeros(sum(row.num_tokens for row in view.rows), device=d_S.device)
    w_N.scatter_reduce_(0, spans.places[inside], d_S[:, None].expand_as(inside)[inside], "amax")
    return split(w_N.cpu().numpy(), view.rows)


def cut(view: View, width: int, stride: int) -> Spans:
    lengths_R = [row.num_tokens for row in view.rows]
    norms_R = torch.stack([h.float().norm(dim=1).sum() for h in view.hidden]).tolist()
    unit_R = [1.0] * len(lengths_R)
    for group in view.groups:
        mean = sum(norms_R[i] for i in group) / sum(lengths_R[i] for i in group)
        for i in group:
            unit_R[i] = max(mean, 1e-30)
    first: list[int] = []
    last: list[int] = []
    of_R: list[range] = []
    begin = 0
    for length in lengths_R:
        at = clouds.starts(length, width, stride)
        of_R.append(range(len(first), len(first) + len(at)))
        first += [begin + start for start in at]
        last += [begin + min(start + width, length) - 1 for start in at]
        begin += length
    first_S, last_S = np.array(first), np.array(last)
    places = first_S[:, None] + np.arange(int((last_S - first_S).max()) + 1)
    mass = (places <= last_S[:, None]) / (last_S - first_S + 1)[:, None]
    here = view.hidden[0].device
    return Spans(
        list(view.hidden),
        unit_R,
        of_R,
        torch.from_numpy(np.minimum(places, last_S[:, None])).to(here),
        torch.from_numpy(mass.astype(np.float32)).to(here),
    )


def between_rows(
    spans: Spans, opposed: list[tuple[int, int]], distance: str, width: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Pairs of spans [P, 2] of opposed rows and their distance [P]; its bound for wasserstein."""
    pairs, values = [], []
    within: dict[int, Tensor] = {}  # of a row's spans, the mean distance of their points
    for i, j in opposed:
        C = torch.cdist(spans.points(i), spans.points(j))
        if distance == "mmd":
            for row in {i, j} - within.keys():
                own = torch.cdist(spans.points(row), spans.points(row))
                within[row] = clouds.means(own, width, stride).diagonal()
            between = 2 * clouds.means(C, width, stride) - within[i][:, None] - within[j]
            found = between.clamp(min=0).sqrt()
        else:
            from_x, from_y = clouds.sides(C, width, stride)
            found = torch.maximum(from_x, from_y)
            if distance == "chamfer":
                found = (from_x + from_y) / 2
        values.append(found.flatten())
        one, other = spans.of_R[i], spans.of_R[j]
        pairs.append(np.stack(np.meshgrid(one, other, indexing="ij"), axis=-1).reshape(-1, 2))
    return torch.from_numpy(np.concatenate(pairs)).to(values[0].device), torch.cat(values)


def by_plan(spans: Spans, pairs: Tensor, bound: Tensor, blur: float, iterations: int) -> Tensor:
    """[P], <P, C> of the pairs that can be nearest, inf for the others."""
    d = torch.full_like(bound, torch.inf)
    best = nearest(len(spans.mass), pairs, bound)
    likely = (bound[:, None] == best[pairs]).any(dim=1)
    d[likely] = planned(spans, pairs[likely], blur, iterations)
    best = nearest(len(spans.mass), pairs, d)
    open_ = (bound[:, None] < best[pairs]).any(dim=1) & ~likely
    d[open_] = planned(spans, pairs[open_], blur, iterations)
    return d


def planned(spans: Spans, pairs: Tensor, blur: float, iterations: int) -> Tensor:
    """[P], some pairs at a time."""
    flat, w = torch.cat(spans.rows), spans.mass.shape[1]
    numbers = [n for n, of in enumerate(spans.of_R) for _ in of]
    unit_S = torch.tensor(spans.unit_R, device=flat.device)[numbers]

    def points(which: Tensor) -> Tensor:
        return flat[spans.places[which]].float() / unit_S[which, None, None]

    at_once = max(1, MEMORY[flat.device.type] // (4 * w * (2 * flat.shape[1] + 4 * w)))
    found = [unit_S.new_empty(0)]
    for part in pairs.split(at_once):
        one, other = part.unbind(dim=1)
        C = torch.cdist(points(one), points(other))
        found.append(clouds.transport(C, spans.mass[one], spans.mass[other], blur, iterations))
    return torch.cat(found)


def nearest(num_spans: int, pairs: Tensor, values: Tensor) -> Tensor:
    """[S], the least of every span, on either side; inf where it has none."""
    best = values.new_full((num_spans,), torch.inf)
    for side in pairs.unbind(dim=1):
        best.scatter_reduce_(0, side, values, "amin")
    return best
