"""How noisy an update is along a direction, and what a group filters out (Sec. 3.1, eq. 11 to 14).

g_i = sum_t grad log pi(o_it) is the score of rollout i, u a direction in parameter space,
X_i = <u, g_i>. Within a prompt let Var X_i = s^2 and Cov(X_i, X_j) = rho s^2: rho says how much
the rollouts of one prompt share u. For a part B of a group whose advantages do not depend on X:

    Var <u, U_B> = s^2 / |B|^2 [ sum_B A^2 + rho sum_{i != j in B} A_i A_j ]
                 = s^2 / |B|^2 [ (1 - rho) sum_B A^2 + rho S_B^2 ],      U_B = 1/|B| sum_B A_i g_i

Whole groups have S_B = 0, so of a shared direction only 1 - rho is left; a part with one sign only
has the largest S_B. Divided by s^2 sum_B A^2 / |B|^2, the noise of independent rollouts:

    factor = 1 + rho C,      C = sum_{i != j} A_i A_j / sum A^2                         (eq. 14)

C is -1 for whole groups and at most |B| - 1. So rho decides whether the cut of a group matters.

What the theory says of rho: a score has mean zero under the policy that sampled it, E[g | q] = 0,
and rollouts of one prompt are drawn independently; so along every direction fixed beforehand
rho = 0. It can differ from 0 for stale rollouts, for scores divided by the response's own length,
or for top-p sampling.

The filter. A group that sums to zero sees its scores centred, U = 1/G sum A_i (g_i - gbar), and for
binary rewards with success rate p, gbar+ and gbar- the mean scores of right and wrong rollouts:

    U = sqrt(p (1-p)) (gbar+ - gbar-)                         population std in A
    U = sqrt(p (1-p)) sqrt((G-1) / G) (gbar+ - gbar-)         unbiased std, as `grpo` has it

(its 1e-6 left out). A direction survives by as much as its mean score differs between the two.
The paper's text of eq. 11 to 13 is not available to us; this is our derivation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from counterpoise.microscope.batch_tokens import check_rows, take_snapshot
from counterpoise.microscope.parameter_kernel import derivatives_along
from counterpoise.model.load import Policy
from counterpoise.model.scoring import forward, micro_batches
from counterpoise.model.swapped_weights import Direction
from counterpoise.types import Row

FloatArray = NDArray[np.float64]


# -- scores of rollouts ---------------------------------------------------------------------------


def unit_score_directions(
    policy: Policy,
    rows: Sequence[Row],
    weights: Mapping[str, Sequence[ArrayLike]],
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> dict[str, dict[str, Tensor]]:
    """sum_it w_it grad log pi(o_it), scaled to length 1, for each of several weightings by name,
    from one forward pass; weights are a number or [T] a row.
    """
    check_rows(rows)
    names, parameters = zip(*policy.model.named_parameters(), strict=True)
    totals = {key: [torch.zeros_like(p) for p in parameters] for key in weights}
    for batch in micro_batches(rows, micro_tokens):
        logprobs_M = forward(policy, [rows[i] for i in batch], temperature).logprobs_M
        for key, total in totals.items():
            w = [np.broadcast_to(weights[key][i], rows[i].num_tokens) for i in batch]
            objective = (torch.from_numpy(np.concatenate(w)).to(logprobs_M) * logprobs_M).sum()
            gradients = torch.autograd.grad(
                objective, parameters, allow_unused=True, retain_graph=True
            )
            for into, g in zip(total, gradients, strict=True):
                if g is not None:
                    into += g
    found = {}
    for key, total in totals.items():
        length = math.sqrt(sum(float(g.square().sum()) for g in total))
        unit = [g / max(length, 1e-30) for g in total]
        found[key] = dict(zip(names, unit, strict=True))
    return found


def reference_directions(policy: Policy, rows: Sequence[Row]) -> dict[str, dict[str, Tensor]]:
    """Three to look along, from a batch other than the one that is measured.

    shared     the sum of all scores, whatever the reward
    token      the scores of one token type, the one with most sum of 1 - pi: frequent and unsure
    success    mean score of right rollouts minus that of wrong ones, summed over prompts
    """
    seen = take_snapshot(policy, rows)
    unsure_V = np.bincount(seen.tokens.cpu().numpy(), (1 - seen.logprobs.exp()).cpu().numpy())
    token = int(unsure_V.argmax())
    count = Counter((row.group, row.sign) for row in rows)
    weights: dict[str, Sequence[ArrayLike]] = {
        "shared": [1.0 for _ in rows],
        "token": [row.content.response_tokens == token for row in rows],
        "success": [row.sign / count[row.group, row.sign] for row in rows],
    }
    return unit_score_directions(policy, rows, weights)


def rollout_scores(
    policy: Policy,
    rows: Sequence[Row],
    direction: Direction,
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> FloatArray:
    """X_i = <u, g_i> of every row: [R], from one forward-mode pass."""
    moved_N = derivatives_along(
        policy, rows, direction, temperature=temperature, micro_tokens=micro_tokens
    )
    parts = moved_N.double().cpu().split([row.num_tokens for row in rows])
    return np.array([float(part.sum()) for part in parts])


# -- variance -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScoreSpread:
    """Example: ScoreSpread(s2=1.0, rho=0.7)"""

    s2: float  # Var X_i
    rho: float  # Cov(X_i, X_j) / s2 for two rollouts of one prompt


def score_spread(X_PG: FloatArray) -> ScoreSpread:
    """s^2 and rho by the analysis of variance between and within prompts."""
    mean_P = X_PG.mean(axis=1)
    within_P = np.square(X_PG - mean_P[:, None]).sum(axis=1)
    return spread_from_prompts(mean_P, within_P, X_PG.shape[1])


def spread_from_prompts(
    mean_P: FloatArray, within_P: FloatArray, G: int, weights_P: ArrayLike = 1.0
) -> ScoreSpread:
    """The same from each prompt's mean and sum of squares about it.

    MSB = G Var_p(mean_p), MSW = mean_p(within_p) / (G - 1):
        Cov = (MSB - MSW) / G,    s^2 = MSW + Cov,    rho = Cov / s^2
    """
    w_P = np.broadcast_to(np.asarray(weights_P, np.float64), mean_P.shape)
    P = w_P.sum()
    centre = (w_P * mean_P).sum() / P
    between = G * (w_P * np.square(mean_P - centre)).sum() / (P - 1)
    within = (w_P * within_P).sum() / (P * (G - 1))
    shared = (between - within) / G
    s2 = within + shared
    return ScoreSpread(float(s2), float(shared / s2) if s2 > 0 else 0.0)


def closed_form(advantages_B: ArrayLike, of: ScoreSpread) -> float:
    """Var <u, U_B> for the advantages of a part of one group."""
    A_B = np.asarray(advantages_B, np.float64)
    square, total = float(np.square(A_B).sum()), float(A_B.sum())
    return of.s2 / len(A_B) ** 2 * ((1 - of.rho) * square + of.rho * total**2)


def noise_factor(squares: float, sums: float, rho: float) -> float:
    """1 + rho C with C = sums / squares - 1, for sum A^2 and sum of S_B^2 over any parts."""
    return 1 + rho * (sums / squares - 1)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateNoise:
    """Each prompt's sums over the parts its group is cut into: [P]."""

    measured: FloatArray  # sum_B (sum_{i in B} A_i X_i)^2
    sum_of_squares: FloatArray  # sum_B sum_B A^2
    squared_sums: FloatArray  # sum_B S_B^2


def update_noise(X_PG: FloatArray, A_PG: FloatArray, part_PG: NDArray[np.int64]) -> UpdateNoise:
    """`part_PG` numbers the part, or optimizer step, of each rollout; the caller centres X."""
    P = len(X_PG)
    cells = int(part_PG.max()) + 1
    cell = np.arange(P)[:, None] * cells + part_PG

    def per_part(values_PG: FloatArray) -> FloatArray:
        flat = np.bincount(cell.ravel(), values_PG.ravel(), P * cells)
        return flat.astype(np.float64).reshape(P, cells)

    return UpdateNoise(
        measured=np.square(per_part(A_PG * X_PG)).sum(axis=1),
        sum_of_squares=np.square(A_PG).sum(axis=1),
        squared_sums=np.square(per_part(A_PG)).sum(axis=1),
    )


def shuffle_advantages(A_PG: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Each group's advantages dealt anew among its rollouts: whoever was right is now a matter of
    chance, so A says nothing of X and the closed form must hold."""
    return rng.permuted(A_PG, axis=1)


def cut_whole(A_PG: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """The group stays together: S_B = 0."""
    return np.zeros(A_PG.shape, dtype=np.int64)


def cut_halves(A_PG: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """Half of the rollouts in either part, at random."""
    P, G = A_PG.shape
    return rng.permuted(np.tile(np.arange(G) * 2 // G, (P, 1)), axis=1)


def cut_balanced(A_PG: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """Halves with each sign dealt in turn to both: 2+2 and 2+2 of a group with four right."""
    order_PG = np.lexsort((rng.random(A_PG.shape), A_PG > 0), axis=1)
    part_PG = np.empty(A_PG.shape, dtype=np.int64)
    np.put_along_axis(part_PG, order_PG, np.arange(A_PG.shape[1])[None] % 2, axis=1)
    return part_PG


def cut_by_sign(A_PG: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """Right and wrong rollouts apart: |S_B| is as large as it gets."""
    return (A_PG > 0).astype(np.int64)


CUTS = {
    "whole": cut_whole,
    "balanced halves": cut_balanced,
    "random halves": cut_halves,
    "by sign": cut_by_sign,
}


# -- filter ---------------------------------------------------------------------------------------


def update_along_direction(X_PG: FloatArray, A_PG: FloatArray) -> FloatArray:
    """<u, U> = 1/G sum_i A_i X_i of every whole group: [P]."""
    return (A_PG * X_PG).mean(axis=1)


def success_gap(X_PG: FloatArray, A_PG: FloatArray) -> FloatArray:
    """<u, gbar+ - gbar-> of every group: [P]; groups need both signs."""
    up_PG = A_PG > 0
    right = (X_PG * up_PG).sum(axis=1) / up_PG.sum(axis=1)
    return right - (X_PG * ~up_PG).sum(axis=1) / (~up_PG).sum(axis=1)


def filter_gain(p: ArrayLike, G: int, *, unbiased: bool = True) -> FloatArray:
    """What U multiplies the success gap by: sqrt(p (1-p)), times sqrt((G-1)/G) for unbiased std."""
    p_ = np.asarray(p, np.float64)
    return np.sqrt(p_ * (1 - p_) * ((G - 1) / G if unbiased else 1.0))
