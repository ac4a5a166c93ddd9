"""RLSD: a token is trusted by how much more likely the answer, once known, would make it.

    D_t = log pi(o_t | x, c, o_<t) - log pi(o_t | x, o_<t)         c the reference answer, |D| <= 20
    w_t = (1 - lam) + lam clip(exp(sign(A) D_t), 1 - clip, 1 + clip)
    lam = mix (1 - (iteration - 1) / fade), not below 0

Teacher and student are the policy that sampled, with the hint in its prompt and without; both
passes are the trainer's, so that an uninformative hint gives 1. lam = 0, or a problem without a
reference answer: 1. arXiv:2604.03128. mix = 0.5, fade = 50 and clip = 0.2 are the paper's (by a
reading note); it syncs its teacher every 10 steps, here it is always the current policy, as in the
code of SDPG. The wording of the hint (`credit/hinted_prompts.py`) is chosen here.
"""

from __future__ import annotations

import numpy as np

from counterpoise.credit.hinted_prompts import hinted
from counterpoise.credit.view import View, ones
from counterpoise.errors import PoiseError
from counterpoise.types import Floats

LARGEST = 20.0


def weights(
    view: View, *, mix: float = 0.5, fade: int = 50, clip: float = 0.2
) -> list[Floats] | None:
    policy, reader = view.policy, view.reader
    assert reader is not None
    lam = faded(mix, fade, reader.iteration)
    if lam == 0:
        return None
    with_hint = view.logprobs_after(hinted(policy, view.rows))
    found = ones(view.rows)
    for i, row in enumerate(view.rows):
        if row.content.answer:
            found[i] = weigh(with_hint[i], view.logprobs[i], row.sign, lam, clip)
    return found


def faded(mix: float, fade: int, iteration: int) -> float:
    """lam: `mix` in the first iteration, falling to 0 over `fade` of them."""
    if not 0 <= mix <= 1 or fade < 1:
        raise PoiseError(f"mix must be 0 to 1 and fade 1 or more: not {mix:g} and {fade}")
    return mix * max(0.0, 1 - (iteration - 1) / fade)


def weigh(teacher_T: Floats, student_T: Floats, sign: int, lam: float, clip: float) -> Floats:
    D_T = np.clip(teacher_T.astype(np.float64) - student_T, -LARGEST, LARGEST)
    trusted_T = np.clip(np.exp(sign * D_T), 1 - clip, 1 + clip)
    return ((1 - lam) + lam * trusted_T).astype(np.float32)
