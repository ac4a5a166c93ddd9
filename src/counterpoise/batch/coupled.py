"""QB that also brings queries together which push each other: whole groups, chosen by their tokens.

Tokens of two queries push each other where they are the same token and neither was sure (eq. 10:
phi is at least (1 - pi_j)(1 - pi_k) for equal tokens). So of two groups a, b

    S_ab = sum_v q_a(v) q_b(v),        q_a(v) = sum_{j in a, o_j = v} |A_j| (1 - pi(o_j))

is how much they have to say to each other, by the sampler's probabilities, without a pass of the
model. Sharing an optimizer step they cancel or agree; in different ones they cannot. The plan makes
the sum of S over pairs of groups within steps large: it begins as `grouped` and exchanges groups
between steps, best exchange first for each group in random order, until a round changes nothing.

Counts of groups stay those of `grouped`. Token loads may differ by more than its own: no step above
`MAX_IMBALANCE` times the mean, unless `grouped` was there already. Rows without signal push nobody, and
whoever pushes nobody goes wherever there is room.

Needs the tokens and the sampler's log-probabilities: a plan of rows without them is refused.
n groups take n^2 numbers and a few rounds of n^2 steps: 1,024 groups take two seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from counterpoise.batch import grouped
from counterpoise.errors import PoiseError
from counterpoise.types import Row

MAX_IMBALANCE = 1.1  # heaviest step over mean: what exchanges may cost
MAX_ROUNDS = 20  # a bound on time

Array = NDArray[np.float64]


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    steps = grouped.compose(rows, num_steps, seed)  # also the order of the steps
    members: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        members.setdefault(row.group, []).append(i)
    home = {rows[i].group: s for s, step in enumerate(steps) for i in step}
    S = group_coupling(rows, list(members.values()))
    loads_n = np.array([sum(rows[i].num_tokens for i in part) for part in members.values()])
    at_n = np.array([home[name] for name in members])
    exchange_groups(S, loads_n, at_n, num_steps, np.random.default_rng(seed))
    return [
        [i for group, s in zip(members.values(), at_n, strict=True) if s == step for i in group]
        for step in range(num_steps)
    ]


def group_coupling(rows: Sequence[Row], groups: Sequence[Sequence[int]]) -> Array:
    """S [n, n], with a diagonal of 0."""
    number: list[NDArray[np.int64]] = []
    tokens: list[NDArray[np.int64]] = []
    pull: list[Array] = []
    for n, group in enumerate(groups):
        for i in group:
            token_T, unsure_T = _tokens_and_uncertainty(rows[i])
            number.append(np.full(len(token_T), n))
            tokens.append(token_T)
            pull.append(abs(rows[i].advantage) * unsure_T)
    types, type_N = np.unique(np.concatenate(tokens), return_inverse=True)
    cell_N = np.concatenate(number) * len(types) + type_N
    shape = len(groups), len(types)
    q: Array = np.zeros(shape)
    np.add.at(q.reshape(-1), cell_N, np.concatenate(pull))
    q = q[:, (q > 0).sum(axis=0) > 1]  # a token of one query couples nobody
    S: Array = q @ q.T
    np.fill_diagonal(S, 0)
    return S


def exchange_groups(
    S: Array,
    loads_n: NDArray[np.int64],
    at_n: NDArray[np.int64],
    num_steps: int,
    rng: np.random.Generator,
) -> None:
    """Move groups in `at_n`, their step, as long as pairs of equal step gain coupling.

    With near(a, t) the sum of S_ac over c in t, an exchange of a in s and b in t is worth
    near(a, t) - near(a, s) + near(b, s) - near(b, t) - 2 S_ab.
    """
    near = np.stack([S[:, at_n == step].sum(axis=1) for step in range(num_steps)], axis=1)
    full = np.bincount(at_n, loads_n, minlength=num_steps)
    most = max(MAX_IMBALANCE * full.mean(), full.max())
    every = np.arange(len(at_n))
    least = 1e-9 * max(float(S.sum()), 1e-300)
    for _ in range(MAX_ROUNDS):
        moved = False
        for a in rng.permutation(len(at_n)):
            s = at_n[a]
            gain = near[a, at_n] - near[a, s] + near[:, s] - near[every, at_n] - 2 * S[a]
            heavier = loads_n[a] - loads_n  # what the other step gets more
            fits = (full[at_n] + heavier <= most) & (full[s] - heavier <= most) & (at_n != s)
            b = int(np.where(fits, gain, -np.inf).argmax())
            if not fits[b] or gain[b] <= least:
                continue
            t = at_n[b]
            near[:, s] += S[:, b] - S[:, a]
            near[:, t] += S[:, a] - S[:, b]
            full[s], full[t] = full[s] - heavier[b], full[t] + heavier[b]
            at_n[a], at_n[b] = t, s
            moved = True
        if not moved:
            return


def _tokens_and_uncertainty(row: Row) -> tuple[NDArray[np.int64], Array]:
    """Tokens of a row and 1 - pi of each."""
    tokens_T = None if row.rollout is None else row.rollout.response_tokens
    if row.rollout is None or tokens_T is None or len(tokens_T) != row.num_tokens:
        raise PoiseError(
            "composer 'coupled' compares tokens, and these rows have none: "
            "choose batch.composer=grouped"
        )
    logprobs_T = row.rollout.sampled_logprobs.astype(np.float64)
    if len(logprobs_T) != len(tokens_T) or not np.isfinite(logprobs_T).all():
        raise PoiseError(
            "composer 'coupled' needs sampled_logprobs, and some rows have none: "
            "choose batch.composer=grouped"
        )
    return tokens_T.astype(np.int64), -np.expm1(np.minimum(logprobs_T, 0))
