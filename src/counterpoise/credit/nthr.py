"""NTHR: tokens of wrong rollouts that hold right ones down are pushed less. arXiv:2505.18830

    s_j = sum_{k in right rollouts of the group} K_jk          K_jk = <h_j, h_k> <r_j, r_k>
    tau = beta * min_{i right} mean_{j in i} s_j
    w_j = eta   for tokens of wrong rollouts with s_j > tau, else 1

Lowering log pi(o_j) lowers the right rollouts by as much as s_j says; what lies above the least
that a right rollout does for its own kind is held back. The same kernel as eq. 9 of the
Cancellation paper, with positive k and negative j alone.

beta 1: the paper's. eta: 0 in its study of likelihoods; `by_rate` takes 2 |1/2 - p| instead, p the
share of right rollouts, which a public port for verl calls the paper's setting for training. It is
the default here, because this is training; the text that was read does not state it.
Right and wrong are the signs of A. A group without right rollouts: 1.
"""

from __future__ import annotations

import numpy as np

from counterpoise.credit.coupling_pushes import pushed, split
from counterpoise.credit.view import View, ones
from counterpoise.types import Floats


def weights(
    view: View, *, beta: float = 1.0, eta: float = 0.0, by_rate: bool = True
) -> list[Floats]:
    found = ones(view.rows)
    if not any(row.sign > 0 for row in view.rows):
        return found
    seen = pushed(view, [float(row.sign > 0) for row in view.rows])
    s = split(seen.group[:, 0], view.rows)
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
