"""A problem with its answer told: the prompt of a teacher that knows more than its student.

What the policy makes of a response after this prompt, and after its own, says what knowing the
answer changes (RLSD, SDPG). The wording is chosen here, plain enough for a small model; that of
SDPG's code says the same in two sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.model.load import Policy
from counterpoise.types import Ints, Row

HINT = "{problem}\nThe answer is {answer}."


def hinted(policy: Policy, rows: Sequence[Row]) -> list[Ints]:
    """The prompt of every row with the reference answer in it."""
    asked = [(row.content.prompt, row.content.answer) for row in rows]
    told = {
        (problem, answer): policy.encode(HINT.format(problem=problem, answer=answer))
        for problem, answer in dict.fromkeys(asked)
    }
    return [told[problem_and_answer] for problem_and_answer in asked]
