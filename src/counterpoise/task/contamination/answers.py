r"""How the answer of a training prompt relates to that of a benchmark problem.

    same        the verifier's text rules find them equal (verify/math/decide.py)
    derived     the training answer is the sum of the integers in the benchmark's, with or without
                their signs: 3 where it has \frac{1}{2} (asking for m + n), 9 where it has the list
                `1, 3, 5`
    unknown     one is missing, or the training answer is another integer and the benchmark's is a
                formula: the question may have been changed
    different   anything else: two integers, two formulas, a formula where the benchmark has an
                integer

Training sets are often rewritten so that every answer is an integer, and benchmarks are not.
`unknown` is therefore no evidence against a copy, but `different` is.
"""

from __future__ import annotations

import re
from typing import Literal

from counterpoise.verify.math.decide import decide_by_text

AnswerRelation = Literal["same", "derived", "unknown", "different"]

_INTEGER = re.compile(r"-?\d+")


def relate_answers(answer: str, gold: str) -> AnswerRelation:
    r"""Compare the training answer with the benchmark's.

    Example:
        >>> relate_answers("3", "\\frac{1}{2}"), relate_answers("5", "2\\sqrt{3}+1")
        ('derived', 'unknown')
    """
    if not answer or not gold:
        return "unknown"
    if decide_by_text(answer, gold):
        return "same"
    if not _INTEGER.fullmatch(answer.strip()) or _INTEGER.fullmatch(gold.strip()):
        return "different"
    integers = [int(number) for number in _INTEGER.findall(gold.replace(" ", ""))]
    sums = {sum(integers), sum(map(abs, integers))} if len(integers) > 1 else set()
    return "derived" if int(answer) in sums else "unknown"
