"""THR, token hidden reward: tokens by what they do to the group's right rollouts. arXiv:2510.03669

    THR_j = A_j sum_{k in right rollouts of the group} K_jk         K_jk = <h_j, h_k> <r_j, r_k>
    w_j   = 1[|THR_j| > tau m] (1 + p sign(THR_j)),                 m = mean |THR| of the group

THR > 0: training on the token makes right rollouts likelier. p > 0 adds to such tokens (exploit:
greedy accuracy), p < 0 to the others (explore: pass@K).

The exact equation was not found; this is the form that the reviews of the paper describe. Chosen
here: p 0.1, tau 0.01 and that tau is relative to m, since kernels have no natural unit. Right is
A > 0. A group without right rollouts, or in which nothing couples: 1.
"""

from __future__ import annotations

import numpy as np

from counterpoise.credit.coupling_pushes import pushed, split
from counterpoise.credit.view import View, ones
from counterpoise.errors import PoiseError
from counterpoise.types import Floats


def weights(view: View, *, p: float = 0.1, tau: float = 0.01) -> list[Floats]:
    if abs(p) > 1:
        raise PoiseError(f"thr: p {p:g} would turn signs: choose -1 to 1")
    found = ones(view.rows)
    if not any(row.sign > 0 for row in view.rows):
        return found
    seen = pushed(view, [float(row.sign > 0) for row in view.rows])
    s = split(seen.group[:, 0], view.rows)
    for group in view.groups:
        hidden = {i: view.rows[i].advantage * s[i].astype(np.float64) for i in group}
        mean = np.abs(np.concatenate(list(hidden.values()))).mean()
        if mean == 0:
            continue
        for i, thr_T in hidden.items():
            counts = np.abs(thr_T) > tau * mean
            found[i] = (counts * (1 + p * np.sign(thr_T))).astype(np.float32)
    return found
