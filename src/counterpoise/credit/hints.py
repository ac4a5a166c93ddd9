"""The prompt of the teacher: a problem together with its reference answer.

Comparing the policy's reading of a response after this prompt and after the original one shows what
knowing the answer changes (RLSD, SDPG). The wording is chosen here, plain enough for a small model;
SDPG's code says the same thing in two sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from counterpoise.model.load import Policy
from counterpoise.types import Ints, Row

HINT_TEMPLATE = "{problem}\nThe answer is {answer}."


def hinted_prompts(policy: Policy, rows: Sequence[Row]) -> list[Ints]:
    """The prompt of every row with the reference answer added, encoded."""
    problems = [row.content.problem for row in rows]
    encoded_prompts = {
        problem: policy.encode(problem.rewrite(partial(add_hint, answer=problem.answer)))
        for problem in dict.fromkeys(problems)
    }
    return [encoded_prompts[problem] for problem in problems]


def add_hint(problem: str, answer: str) -> str:
    """The problem's text with the answer after it."""
    return HINT_TEMPLATE.format(problem=problem, answer=answer)
