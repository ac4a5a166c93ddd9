r"""How two answers of what may be one problem relate.

    same        the verifier's text rules find them equal (verify/math/decide.py)
    derived     the one asked for m + n, or for a sum: 3 for \frac{1}{2}, 9 for 1, 3, 5
    unknown     one is missing, or an integer stands against a formula: the question was changed
    different   anything else: two integers, two formulas

Training sets are often rewritten so that every answer is an integer, so `unknown` is no evidence
against a copy, and `different` is.
"""

from __future__ import annotations

import re
from typing import Literal

from counterpoise.verify.math.decide import decide

AnswerRelation = Literal["same", "derived", "unknown", "different"]

_INTEGER = re.compile(r"-?\d+")


def relate_answers(answer: str, gold: str) -> AnswerRelation:
    r"""The training answer against the benchmark's.

    Example:
        >>> relate("3", "\\frac{1}{2}"), relate("5", "2\\sqrt{3}+1"), relate("5", "6")
        ('derived', 'unknown', 'different')
    """
    if not answer or not gold:
        return "unknown"
    if decide(answer, gold):
        return "same"
    if not _INTEGER.fullmatch(answer.strip()):
        return "different"
    if _INTEGER.fullmatch(gold.strip()):
        return "different"
    signed = [int(part) for part in _INTEGER.findall(gold.replace(" ", ""))]
    sums = {sum(signed), sum(map(abs, signed))} if len(signed) > 1 else set()
    return "derived" if int(answer) in sums else "unknown"
