"""Token weights from the output-layer kernel: which tokens push a token, and which way."""

from __future__ import annotations

import numpy as np

from counterpoise.credit.coupling_pushes import split_tokens, sum_pushes
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.types import Floats

SCOPES = ("group", "batch")
TINY = 1e-30


def cancellation(view: CreditView, *, strength: float = 0.5, scope: str = "group") -> list[Floats]:
    """The credit that cancellation hides, made explicit. Ours, after arXiv:2605.08666.

        s_j = (u_j + d_j) / (|u_j| + |d_j|)            w_j = 1 + strength * sign(A_j) * s_j
        u_j = sum_{k: A_k > 0} A_k K_jk                d_j = sum_{k: A_k < 0} A_k K_jk

    k runs over the tokens of the other rollouts of j's group (`scope=batch`: of the whole batch), K
    is the output-layer kernel (`credit/coupling_pushes.py`). u + d is what they will do to log
    pi(o_j) in one update, so s in [-1, 1] is the hidden credit of the token, free of its scale: +1
    where all that moves it moves it up, 0 where right and wrong rollouts undo each other, -1 where
    all moves it down. A_j w_j = A_j + strength |A_j| s_j: to the credit of its rollout a token adds
    what the others found. The weight lies in [1 - strength, 1 + strength], so with strength <= 1 no
    sign turns.

    Why not u + d over its root mean square, clipped: pushes have long tails, as a sure token hardly
    moves; the ratio ranks sure and unsure tokens alike. Why not the token's own rollout: it repeats
    A_j, and its pushes say nothing of value. Why the group: it has the same question, and QB keeps
    it in one step, so its pushes do happen. Measured on the embedded model, as rank correlation
    with the Monte Carlo value of 884 tokens (90 prompts, 16 continuations), where A has .32: s has
    .22 by the other rollouts of the group, .17 by those of the batch, -.02 by the token's own; u +
    d of the batch has .12. A w has .40 with strength 0.5 and .43 with 1.

    What the whole group shares is weighed down a little on both sides, as the others oppose it. The
    weight looks at the sign of A, so it is not exchangeable: on shared prefixes .65 of the pull is
    left in the same batch, .54 without weights. strength 0.5: chosen here; no token is silenced.
    Nobody else in the group, or nothing that moves the token: s = 0, w = 1.
    """
    if scope not in SCOPES:
        raise PoiseError(f"cancellation: scope is one of {', '.join(SCOPES)}, not '{scope}'")
    if not 0 <= strength <= 1:
        raise PoiseError(f"cancellation: strength {strength:g} may turn signs: choose 0 to 1")
    if not view.rows:
        return []
    seen = sum_pushes(view, [row.advantage for row in view.rows], include_batch=scope == "batch")
    others = (seen.by_batch if scope == "batch" else seen.by_group) - seen.by_row  # [N, 2]
    others[np.abs(others) <= seen.rounding * np.abs(seen.by_row)] = 0
    credit = others.sum(axis=1) / np.maximum(np.abs(others).sum(axis=1), TINY)
    sign = np.repeat([row.sign for row in view.rows], [row.num_tokens for row in view.rows])
    return split_tokens(1 + strength * sign * credit, view.rows)


def nthr(
    view: CreditView, *, beta: float = 1.0, eta: float = 0.0, by_rate: bool = True
) -> list[Floats]:
    """NTHR: tokens of wrong rollouts that hold right ones down are pushed less. arXiv:2505.18830

        s_j = sum_{k in right rollouts of the group} K_jk          K_jk = <h_j, h_k> <r_j, r_k>
        tau = beta * min_{i right} mean_{j in i} s_j
        w_j = eta   for tokens of wrong rollouts with s_j > tau, else 1

    Lowering log pi(o_j) lowers the right rollouts by as much as s_j says; what lies above the least
    that a right rollout does for its own kind is held back. The same kernel as eq. 9 of the
    Cancellation paper, with positive k and negative j alone.

    beta 1: the paper's. eta: 0 in its study of likelihoods; `by_rate` takes 2 |1/2 - p| instead, p
    the share of right rollouts, which a public port for verl calls the paper's setting for
    training. It is the default here, because this is training; the text that was read does not
    state it. Right and wrong are the signs of A. A group without right rollouts: 1.
    """
    found = unit_weights(view.rows)
    if not any(row.sign > 0 for row in view.rows):
        return found
    seen = sum_pushes(view, [float(row.sign > 0) for row in view.rows])
    s = split_tokens(seen.by_group[:, 0], view.rows)
    for group in view.groups:
        right = [i for i in group if view.rows[i].sign > 0]
        if not right:
            continue
        edge = beta * min(float(np.mean(s[i], dtype=np.float64)) for i in right)
        kept = abs(1 - 2 * len(right) / len(group)) if by_rate else eta
        for i in group:
            if view.rows[i].sign < 0:
                found[i][s[i] > edge] = kept
    return found


def thr(view: CreditView, *, p: float = 0.1, tau: float = 0.01) -> list[Floats]:
    """THR, token hidden reward: tokens by what they do to the group's right rollouts.
    arXiv:2510.03669

        THR_j = A_j sum_{k in right rollouts of the group} K_jk         K_jk = <h_j, h_k> <r_j, r_k>
        w_j   = 1[|THR_j| > tau m] (1 + p sign(THR_j)),                 m = mean |THR| of the group

    THR > 0: training on the token makes right rollouts likelier. p > 0 adds to such tokens
    (exploit: greedy accuracy), p < 0 to the others (explore: pass@K).

    The exact equation was not found; this is the form that the reviews of the paper describe.
    Chosen here: p 0.1, tau 0.01 and that tau is relative to m, since kernels have no natural unit.
    Right is A > 0. A group without right rollouts, or in which nothing couples: 1.
    """
    if abs(p) > 1:
        raise PoiseError(f"thr: p {p:g} would turn signs: choose -1 to 1")
    found = unit_weights(view.rows)
    if not any(row.sign > 0 for row in view.rows):
        return found
    seen = sum_pushes(view, [float(row.sign > 0) for row in view.rows])
    s = split_tokens(seen.by_group[:, 0], view.rows)
    for group in view.groups:
        hidden = {i: view.rows[i].advantage * s[i].astype(np.float64) for i in group}
        mean = np.abs(np.concatenate(list(hidden.values()))).mean()
        if mean == 0:
            continue
        for i, thr_T in hidden.items():
            counts = np.abs(thr_T) > tau * mean
            found[i] = (counts * (1 + p * np.sign(thr_T))).astype(np.float32)
    return found
