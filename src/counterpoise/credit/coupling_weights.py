"""Token weights from the output-layer kernel: which tokens push a token, and in which direction."""

from __future__ import annotations

import numpy as np

from counterpoise.credit.coupling_pushes import split_tokens, sum_pushes
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.types import Floats

SCOPES = ("group", "batch")
TINY = 1e-30


def cancellation(view: CreditView, *, strength: float = 0.5, scope: str = "group") -> list[Floats]:
    """Turn cancellation between rollouts into explicit credit. Ours, after arXiv:2605.08666.

        s_j = (u_j + d_j) / (|u_j| + |d_j|)            w_j = 1 + strength * sign(A_j) * s_j
        u_j = sum_{k: A_k > 0} A_k K_jk                d_j = sum_{k: A_k < 0} A_k K_jk

    k runs over the tokens of the other rollouts of j's group (`scope=batch`: of the whole batch), K
    is the output-layer kernel (`credit/coupling_pushes.py`). u + d is what they will do to log
    pi(o_j) in one update, so s in [-1, 1] is the hidden credit of the token, independent of its
    scale: +1 where every push is upward, 0 where right and wrong rollouts cancel, -1 where every
    push is downward. A_j w_j = A_j + strength |A_j| s_j: the token's credit is that of its rollout
    plus the evidence of the others. The weight lies in [1 - strength, 1 + strength], so with
    strength <= 1 no sign flips.

    Why not u + d over its root mean square, clipped: pushes have long tails, because a confident
    token hardly moves; the ratio puts confident and uncertain tokens on one scale. Why not the
    token's own rollout: it repeats A_j, and its pushes say nothing about value. Why the group: it
    has the same question, and QB keeps it in one step, so its pushes do happen. Measured on the
    embedded model, as rank correlation with the Monte Carlo value of 884 tokens (90 prompts, 16
    continuations), where A has .32: s has .22 from the other rollouts of the group, .17 from those
    of the batch, -.02 from the token's own; u + d of the batch has .12. A w has .40 with strength
    0.5 and .43 with 1.

    Tokens that the whole group shares lose a little weight in right and in wrong rollouts, as the
    others oppose them. The weight depends on the sign of A, so right and wrong rollouts weight a
    shared token differently and cancel less on it: on shared prefixes net / gross pull
    (`microscope/prefixes.py`) is .65, in the same batch without weights .54. strength 0.5: chosen
    here; no token is silenced. A token that no other rollout of the group pushes has s = 0, w = 1.
    """
    if scope not in SCOPES:
        raise PoiseError(f"cancellation: scope is one of {', '.join(SCOPES)}, not '{scope}'")
    if not 0 <= strength <= 1:
        raise PoiseError(f"cancellation: strength {strength:g} could flip signs: choose 0 to 1")
    if not view.rows:
        return []
    pushes = sum_pushes(view, [row.advantage for row in view.rows], include_batch=scope == "batch")
    pushes_of_scope = pushes.by_group if pushes.by_batch is None else pushes.by_batch
    others_N2 = pushes_of_scope - pushes.by_row
    # Where a group has no other rollout the difference is rounding alone: s must be exactly 0.
    others_N2[np.abs(others_N2) <= pushes.rounding * np.abs(pushes.by_row)] = 0
    total_push_N = np.abs(others_N2).sum(axis=1)
    hidden_credit_N = others_N2.sum(axis=1) / np.maximum(total_push_N, TINY)
    sign_N = np.repeat([row.sign for row in view.rows], [row.num_tokens for row in view.rows])
    return split_tokens(1 + strength * sign_N * hidden_credit_N, view.rows)


def nthr(
    view: CreditView, *, beta: float = 1.0, eta: float = 0.0, by_rate: bool = True
) -> list[Floats]:
    """NTHR: weaken tokens of wrong rollouts that lower the group's right rollouts. arXiv:2505.18830

        s_j = sum_{k in right rollouts of the group} K_jk          K_jk = <h_j, h_k> <r_j, r_k>
        tau = beta * min_{i right} mean_{j in i} s_j
        w_j = eta   for tokens of wrong rollouts with s_j > tau, else 1

    Lowering log pi(o_j) lowers the right rollouts in proportion to s_j. Each right rollout has a
    mean s over its tokens; tau is beta times the smallest of these means. K is the kernel of eq. 9
    of the Cancellation paper, with positive k and negative j only.

    beta 1: the paper's. eta: 0 in its study of likelihoods. `by_rate` replaces eta by 2 |1/2 - p|,
    with p the share of right rollouts. A public port for verl calls that the paper's setting for
    training, so it is the default here, although it was not found in the paper's text. To set eta,
    also set by_rate=false. Right and wrong are the signs of A. A group without right rollouts: 1.
    """
    if eta and by_rate:
        raise PoiseError(
            f"nthr: eta {eta:g} is not used while by_rate replaces it: set by_rate=false too"
        )
    if not 0 <= eta <= 1:
        raise PoiseError(f"nthr: eta {eta:g} would not weaken tokens: choose 0 to 1")
    row_weights = unit_weights(view.rows)
    if not any(row.sign > 0 for row in view.rows):
        return row_weights
    pushes = sum_pushes(view, [float(row.sign > 0) for row in view.rows])
    influence = split_tokens(pushes.by_group[:, 0], view.rows)
    for group in view.groups:
        correct_rows = [i for i in group if view.rows[i].sign > 0]
        if not correct_rows:
            continue
        threshold = beta * min(float(np.mean(influence[i], dtype=np.float64)) for i in correct_rows)
        reduced_weight = abs(1 - 2 * len(correct_rows) / len(group)) if by_rate else eta
        for i in group:
            if view.rows[i].sign < 0:
                row_weights[i][influence[i] > threshold] = reduced_weight
    return row_weights


def thr(view: CreditView, *, p: float = 0.1, tau: float = 0.01) -> list[Floats]:
    """THR (token hidden reward): weight tokens by their effect on the group's right rollouts.

        THR_j = A_j sum_{k in right rollouts of the group} K_jk         K_jk = <h_j, h_k> <r_j, r_k>
        w_j   = 1[|THR_j| > tau m] (1 + p sign(THR_j)),                 m = mean |THR| of the group

    THR > 0: training on the token makes right rollouts more likely. p > 0 strengthens such tokens
    (exploit: greedy accuracy), p < 0 the others (explore: pass@K). arXiv:2510.03669

    The exact equation was not found; this is the form that the reviews of the paper describe.
    Chosen here: p 0.1, tau 0.01 and that tau is relative to m, since kernels have no natural unit.
    Right means A > 0. A group without right rollouts, or one without any coupling: 1.
    """
    if not -1 <= p <= 1:
        raise PoiseError(f"thr: p {p:g} would flip signs: choose -1 to 1")
    row_weights = unit_weights(view.rows)
    if not any(row.sign > 0 for row in view.rows):
        return row_weights
    pushes = sum_pushes(view, [float(row.sign > 0) for row in view.rows])
    influence = split_tokens(pushes.by_group[:, 0], view.rows)
    for group in view.groups:
        hidden_rewards = {
            i: view.rows[i].advantage * influence[i].astype(np.float64) for i in group
        }
        mean_size = np.abs(np.concatenate(list(hidden_rewards.values()))).mean()
        if mean_size == 0:
            continue
        for i, thr_T in hidden_rewards.items():
            is_dominant = np.abs(thr_T) > tau * mean_size
            row_weights[i] = (is_dominant * (1 + p * np.sign(thr_T))).astype(np.float32)
    return row_weights
