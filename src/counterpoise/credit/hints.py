"""The prompt of the teacher: a problem together with its reference answer.

Comparing the policy's reading of a response after this prompt and after the original one shows what
knowing the answer changes (RLSD, SDPG). The wording is chosen here, plain enough for a small model;
SDPG's code says the same thing in two sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.model.load import Policy
from counterpoise.types import Ints, Row

HINT_TEMPLATE = "{problem}\nThe answer is {answer}."


def hinted_prompts(policy: Policy, rows: Sequence[Row]) -> list[Ints]:
    """The prompt of every row with the reference answer added, encoded."""
    questions = [(row.content.prompt, row.content.answer) for row in rows]
    encoded_prompts = {
        (problem, answer): policy.encode(HINT_TEMPLATE.format(problem=problem, answer=answer))
        for problem, answer in dict.fromkeys(questions)
    }
    return [encoded_prompts[problem_and_answer] for problem_and_answer in questions]
