"""The noise of an update along a direction, and what a group filters out (Sec. 3.1, eq. 11 to 14).

g_i = sum_t grad log pi(o_it) is the score of rollout i, u a direction in parameter space,
X_i = <u, g_i>. Within a prompt let Var X_i = s^2 and Cov(X_i, X_j) = rho s^2: rho is how much the
rollouts of one prompt share u. Let B be the rollouts of a group that are in one optimizer step, and
S_B = sum_{i in B} A_i their advantage sum. If the advantages do not depend on X:

    Var <u, U_B> = s^2 / |B|^2 [ sum_B A^2 + rho sum_{i != j in B} A_i A_j ]
                 = s^2 / |B|^2 [ (1 - rho) sum_B A^2 + rho S_B^2 ],      U_B = 1/|B| sum_B A_i g_i

Whole groups have S_B = 0, so only 1 - rho of the noise along a shared direction is left; a part
with a single sign has the largest |S_B|. Divided by s^2 sum_B A^2 / |B|^2, the noise of independent
rollouts, this is

    factor = 1 + rho C,      C = sum_{i != j} A_i A_j / sum A^2                         (eq. 14)

C is -1 for whole groups and at most |B| - 1. So rho decides whether it matters how groups are cut.

In theory rho = 0 along every direction fixed beforehand: a score has mean zero under the policy
that sampled it, E[g | q] = 0, and rollouts of one prompt are drawn independently. It can differ
from 0 for stale rollouts, for scores divided by the response's own length, or for top-p sampling.

The filter: advantages that sum to zero centre the scores, U = 1/G sum A_i (g_i - gbar). For binary
rewards with success rate p, and gbar+ and gbar- the mean scores of right and wrong rollouts:

    U = sqrt(p (1-p)) (gbar+ - gbar-)                         population std in A
    U = sqrt(p (1-p)) sqrt((G-1) / G) (gbar+ - gbar-)         unbiased std, as `grpo` has it

(without the 1e-6 that `grpo` adds to the std). A direction survives as far as its mean score
differs between right and wrong rollouts. The paper's text of eq. 11 to 13 is not available to us;
this is our derivation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from counterpoise.microscope.batch_tokens import check_rows, take_snapshot
from counterpoise.microscope.chosen_gradients import weighted_score_sums
from counterpoise.microscope.parameter_kernel import derivatives_along
from counterpoise.model.load import Policy
from counterpoise.model.swapped_weights import WeightDirection
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
    """`weighted_score_sums` of several named weightings, each scaled to length 1."""
    check_rows(rows)
    sums = weighted_score_sums(
        policy, rows, weights, temperature=temperature, micro_tokens=micro_tokens
    )
    directions = {}
    for weighting, gradients in sums.items():
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        directions[weighting] = {
            name: gradient / max(norm, 1e-30) for name, gradient in gradients.items()
        }
    return directions


def reference_directions(policy: Policy, rows: Sequence[Row]) -> dict[str, dict[str, Tensor]]:
    """Three directions to measure along; take them from another batch than the measured one.

    shared     the sum of all scores, whatever the reward
    token      the scores of one token type, with the largest sum of 1 - pi: frequent, uncertain
    success    mean score of right rollouts minus that of wrong ones, summed over prompts
    """
    snapshot = take_snapshot(policy, rows)
    uncertainty_V = np.bincount(
        snapshot.tokens.cpu().numpy(), (1 - snapshot.logprobs.exp()).cpu().numpy()
    )
    token = int(uncertainty_V.argmax())
    rows_of_sign = Counter((row.group, row.sign) for row in rows)
    weights: dict[str, Sequence[ArrayLike]] = {
        "shared": [1.0 for _ in rows],
        "token": [row.content.response_tokens == token for row in rows],
        "success": [row.sign / rows_of_sign[row.group, row.sign] for row in rows],
    }
    return unit_score_directions(policy, rows, weights)


def rollout_scores(
    policy: Policy,
    rows: Sequence[Row],
    direction: WeightDirection,
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> FloatArray:
    """X_i = <u, g_i> of every row: [R], from one forward-mode pass over the batch."""
    derivatives_N = derivatives_along(
        policy, rows, direction, temperature=temperature, micro_tokens=micro_tokens
    )
    by_row = derivatives_N.double().cpu().split([row.num_tokens for row in rows])
    return np.array([float(row_derivatives.sum()) for row_derivatives in by_row])


# -- variance -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScoreSpread:
    """Variance and correlation of the scores X_i. Example: ScoreSpread(s2=1.0, rho=0.7)"""

    s2: float  # Var X_i
    rho: float  # Cov(X_i, X_j) / s2 for two rollouts of one prompt


def spread_from_prompts(
    mean_P: FloatArray, within_P: FloatArray, G: int, weights_P: ArrayLike = 1.0
) -> ScoreSpread:
    """s^2 and rho by analysis of variance between and within prompts.

    A prompt's G scores are given by their mean and their sum of squares about it. `weights_P` say
    how many times each prompt counts, as in a bootstrap: their sum replaces P.

    MSB = G Var_p(mean_p), MSW = mean_p(within_p) / (G - 1):
        Cov = (MSB - MSW) / G,    s^2 = MSW + Cov,    rho = Cov / s^2
    """
    w_P = np.broadcast_to(np.asarray(weights_P, np.float64), mean_P.shape)
    P = w_P.sum()
    centre = (w_P * mean_P).sum() / P
    between = G * (w_P * np.square(mean_P - centre)).sum() / (P - 1)
    within = (w_P * within_P).sum() / (P * (G - 1))
    covariance = (between - within) / G
    s2 = within + covariance
    return ScoreSpread(float(s2), float(covariance / s2) if s2 > 0 else 0.0)


def noise_factor(sum_of_squares: float, squared_sums: float, rho: float) -> float:
    """1 + rho C with C = squared_sums / sum_of_squares - 1, from sums as in `UpdateNoise`."""
    return 1 + rho * (squared_sums / sum_of_squares - 1)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateNoise:
    """Sums over the parts B that each prompt's group is cut into, not divided by |B|^2: [P]."""

    measured: FloatArray  # sum over B of (sum_{i in B} A_i X_i)^2
    sum_of_squares: FloatArray  # sum over B of sum_{i in B} A_i^2
    squared_sums: FloatArray  # sum over B of S_B^2


def update_noise(X_PG: FloatArray, A_PG: FloatArray, part_PG: NDArray[np.int64]) -> UpdateNoise:
    """Measured noise and its closed-form terms; `part_PG` is the part, or step, of each rollout.

    The caller centres X.
    """
    P = len(X_PG)
    num_parts = int(part_PG.max()) + 1
    cell_PG = np.arange(P)[:, None] * num_parts + part_PG

    def per_part(values_PG: FloatArray) -> FloatArray:
        sums = np.bincount(cell_PG.ravel(), values_PG.ravel(), P * num_parts)
        return sums.astype(np.float64).reshape(P, num_parts)

    return UpdateNoise(
        measured=np.square(per_part(A_PG * X_PG)).sum(axis=1),
        sum_of_squares=np.square(A_PG).sum(axis=1),
        squared_sums=np.square(per_part(A_PG)).sum(axis=1),
    )


def shuffle_advantages(A_PG: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Shuffle the advantages within each group: the closed form needs A independent of X."""
    return rng.permuted(A_PG, axis=1)


def cut_whole(A_PG: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """The group stays together: S_B = 0."""
    return np.zeros(A_PG.shape, dtype=np.int64)


def cut_halves(A_PG: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random half of the rollouts in each part."""
    P, G = A_PG.shape
    return rng.permuted(np.tile(np.arange(G) * 2 // G, (P, 1)), axis=1)


def cut_balanced(A_PG: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """Halves with equal numbers of each sign: four right of eight become 2+2 and 2+2."""
    order_PG = np.lexsort((rng.random(A_PG.shape), A_PG > 0), axis=1)
    part_PG = np.empty(A_PG.shape, dtype=np.int64)
    np.put_along_axis(part_PG, order_PG, np.arange(A_PG.shape[1])[None] % 2, axis=1)
    return part_PG


def cut_by_sign(A_PG: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """Right and wrong rollouts in different parts: |S_B| is as large as it can be."""
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
