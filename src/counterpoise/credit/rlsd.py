"""RLSD: trust a token by how much more likely it becomes once the answer is known.

    D_t = log pi_T(o_t | x, c, o_<t) - log pi(o_t | x, o_<t)     c the reference answer, |D| <= 20
    w_t = (1 - lam) + lam clip(exp(sign(A) D_t), 1 - clip, 1 + clip)
    lam = mix (1 - (iteration - 1) / fade), not below 0

The student is the policy that sampled. The teacher pi_T is the same, with the hint in its prompt,
so an uninformative hint gives 1; or, with teacher_every = k, a copy of the policy that is made anew
every k iterations (the paper: 10; SDPG's code: the policy itself). lam = 0, or a problem without a
reference answer: 1. arXiv:2604.03128. mix = 0.5, fade = 50 and clip = 0.2 are the paper's (by notes
on it, not its text). The wording of the hint is chosen here (`credit/hints.py`).
"""

from __future__ import annotations

import numpy as np

from counterpoise.credit.hints import with_teacher
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.types import Floats

MAX_LOG_RATIO = 20.0


@with_teacher
def weights(
    view: CreditView,
    *,
    mix: float = 0.5,
    fade: int = 50,
    clip: float = 0.2,
) -> list[Floats] | None:
    """Token weights of every row, by a teacher that knows the answer. arXiv:2604.03128"""
    check_clip(clip)
    lam = faded_mix(mix, fade, view.iteration)
    if lam == 0:
        return None
    row_weights = unit_weights(view.rows)
    for i, hinted_T in enumerate(view.hinted_logprobs):
        if hinted_T is not None:
            sign = view.rows[i].sign
            row_weights[i] = trust_weights(hinted_T, view.logprobs[i], sign, lam, clip)
    return row_weights


def check_clip(clip: float) -> None:
    if not clip >= 0:
        raise PoiseError(f"clip must be 0 or above, not {clip:g}")


def faded_mix(mix: float, fade: int, iteration: int) -> float:
    """lam: `mix` in the first iteration, falling linearly to 0 over `fade` iterations."""
    if not 0 <= mix <= 1 or fade < 1:
        raise PoiseError(f"set mix to 0 to 1 and fade to 1 or more, not {mix:g} and {fade}")
    return mix * max(0.0, 1 - (iteration - 1) / fade)


def trust_weights(
    teacher_T: Floats, student_T: Floats, sign: int, lam: float, clip: float
) -> Floats:
    """w [T] from the teacher's and the student's log-probabilities."""
    log_ratio_T = np.clip(teacher_T.astype(np.float64) - student_T, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    trusted_T = np.clip(np.exp(sign * log_ratio_T), 1 - clip, 1 + clip)
    return ((1 - lam) + lam * trusted_T).astype(np.float32)
