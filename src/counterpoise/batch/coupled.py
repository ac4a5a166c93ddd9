"""QB that also brings groups into the same step if they push each other's tokens.

Tokens of two queries push each other where they are the same token and neither was certain (eq. 10:
the coupling phi of equal tokens is at least (1 - pi_j)(1 - pi_k)). So for two groups a, b

    S_ab = sum_v q_a(v) q_b(v),        q_a(v) = sum_{j in a, o_j = v} |A_j| (1 - pi(o_j))

estimates how strongly they interact, from the sampler's probabilities, without a pass of the model.
In one optimizer step their pushes cancel or reinforce; in different steps they cannot. The plan
increases the sum of S over pairs of groups within steps. It begins as `grouped`; each round goes
through the groups in random order and makes the best exchange of each with a group of another step,
until a round changes nothing.

Every step keeps the number of groups that `grouped` gave it. Token loads may differ by more: no
step exceeds `MAX_IMBALANCE` times the mean unless a step of `grouped` did. Rows without signal push
nothing, and a group without pushes goes wherever there is room.

Needs the tokens and the sampler's log-probabilities; rows without them are refused. n groups take
n^2 numbers and a few rounds of n^2 operations: 1,024 groups take two seconds. Axes: _n groups, _T
tokens of a row, _N tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from counterpoise.batch import grouped
from counterpoise.batch.units import rows_by_unit
from counterpoise.errors import PoiseError
from counterpoise.types import Row

MAX_IMBALANCE = 1.1  # heaviest step over mean that exchanges may cause
MAX_ROUNDS = 20  # bounds the time

Array = NDArray[np.float64]


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Start from `grouped`, then exchange groups between steps so that those that interact meet."""
    steps = grouped.compose(rows, num_steps, seed)  # also fixes the order of the steps
    units = rows_by_unit(rows)
    step_of_row = {row_index: number for number, step in enumerate(steps) for row_index in step}
    S = group_coupling(rows, units)
    loads_n = np.array([sum(rows[row_index].num_tokens for row_index in unit) for unit in units])
    step_n = np.array([step_of_row[unit[0]] for unit in units])
    exchange_groups(S, loads_n, step_n, num_steps, np.random.default_rng(seed))
    return [
        [
            row_index
            for unit, unit_step in zip(units, step_n, strict=True)
            if unit_step == step
            for row_index in unit
        ]
        for step in range(num_steps)
    ]


def group_coupling(rows: Sequence[Row], groups: Sequence[Sequence[int]]) -> Array:
    """S [n, n] of the groups, with a diagonal of 0."""
    group_arrays: list[NDArray[np.int64]] = []
    token_arrays: list[NDArray[np.int64]] = []
    weight_arrays: list[Array] = []
    for group_number, group in enumerate(groups):
        for row_index in group:
            token_T, uncertainty_T = _tokens_and_uncertainty(rows[row_index])
            group_arrays.append(np.full(len(token_T), group_number))
            token_arrays.append(token_T)
            weight_arrays.append(abs(rows[row_index].advantage) * uncertainty_T)
    # q as a dense matrix over the token types that occur, which are far fewer than the vocabulary.
    token_types, type_N = np.unique(np.concatenate(token_arrays), return_inverse=True)
    cell_N = np.concatenate(group_arrays) * len(token_types) + type_N
    matrix_shape = len(groups), len(token_types)
    q: Array = np.zeros(matrix_shape)
    np.add.at(q.reshape(-1), cell_N, np.concatenate(weight_arrays))
    q = q[:, (q > 0).sum(axis=0) > 1]  # a token that only one group has couples nothing
    S: Array = q @ q.T
    np.fill_diagonal(S, 0)
    return S


def exchange_groups(
    S: Array,
    loads_n: NDArray[np.int64],
    step_n: NDArray[np.int64],
    num_steps: int,
    rng: np.random.Generator,
) -> None:
    """Exchange groups between steps in place as long as the coupling within steps grows.

    `step_n` is the step of each group. With C(a, t) the sum of S_ac over c in t, which is
    `coupling_to_step`, exchanging a in s with b in t gains
    C(a, t) - C(a, s) + C(b, s) - C(b, t) - 2 S_ab.
    """
    coupling_to_step = np.stack(
        [S[:, step_n == step].sum(axis=1) for step in range(num_steps)], axis=1
    )
    step_load = np.bincount(step_n, loads_n, minlength=num_steps)
    max_load = max(MAX_IMBALANCE * step_load.mean(), step_load.max())
    all_groups = np.arange(len(step_n))
    min_gain = 1e-9 * max(float(S.sum()), 1e-300)
    for _ in range(MAX_ROUNDS):
        improved = False
        for a in rng.permutation(len(step_n)):
            s = step_n[a]
            gain = (
                coupling_to_step[a, step_n]
                - coupling_to_step[a, s]
                + coupling_to_step[:, s]
                - coupling_to_step[all_groups, step_n]
                - 2 * S[a]
            )
            load_difference = loads_n[a] - loads_n  # tokens that the other step gains
            fits = (
                (step_load[step_n] + load_difference <= max_load)
                & (step_load[s] - load_difference <= max_load)
                & (step_n != s)
            )
            b = int(np.where(fits, gain, -np.inf).argmax())
            if not fits[b] or gain[b] <= min_gain:
                continue
            t = step_n[b]
            # Update the sums per step instead of recomputing them: O(n) per exchange.
            coupling_to_step[:, s] += S[:, b] - S[:, a]
            coupling_to_step[:, t] += S[:, a] - S[:, b]
            step_load[s] -= load_difference[b]
            step_load[t] += load_difference[b]
            step_n[a], step_n[b] = t, s
            improved = True
        if not improved:
            return


def _tokens_and_uncertainty(row: Row) -> tuple[NDArray[np.int64], Array]:
    """Tokens of a row, and 1 - pi of each."""
    tokens_T = None if row.rollout is None else row.rollout.response_tokens
    if row.rollout is None or tokens_T is None or len(tokens_T) != row.num_tokens:
        raise PoiseError(
            "composer 'coupled' compares tokens, but these rows have none: "
            "choose batch.composer=grouped"
        )
    logprobs_T = row.rollout.sampled_logprobs.astype(np.float64)
    if len(logprobs_T) != len(tokens_T) or not np.isfinite(logprobs_T).all():
        raise PoiseError(
            "composer 'coupled' needs sampled_logprobs, but some rows have none: "
            "choose batch.composer=grouped"
        )
    return tokens_T.astype(np.int64), -np.expm1(np.minimum(logprobs_T, 0))
