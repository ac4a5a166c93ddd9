"""The prompt of the teacher: what the policy read, and after it what became known later.

Comparing the policy's reading of a response after this prompt and after the original one shows what
knowing the answer (RLSD, SDPG) or the environment's feedback (SERL) changes. The wording of the
hint is chosen here, plain enough for a small model; SDPG's code says the same in two sentences.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar

import numpy as np

from counterpoise.config import CreditConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.types import Ints, Prompt, Row

HINT_TEMPLATE = "{problem}\nThe answer is {answer}."
# The teacher becomes a new copy of the policy every so many iterations; 0: it is the policy.
TEACHER_SETTING = "teacher_every"
Result = TypeVar("Result")


def with_teacher(method: Callable[..., Result]) -> Callable[..., Result]:
    """Add the setting `teacher_every` to a token weighting or step rule that has a teacher.

    The method itself does not read it: `update/rules/bind.py` does, and makes the teacher.
    """
    interval = inspect.Parameter(TEACHER_SETTING, inspect.Parameter.KEYWORD_ONLY, default=0)
    signature = inspect.signature(method)

    @wraps(method)
    def checked(*arguments: Any, teacher_every: int = 0, **settings: Any) -> Result:
        if teacher_every < 0:
            raise PoiseError(f"{TEACHER_SETTING} must be 0 or above, not {teacher_every}")
        return method(*arguments, **settings)

    # Settings are read from the signature (credit/assign.py).
    checked.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), interval]
    )
    return checked


def hinted_prompts(policy: Policy, rows: Sequence[Row]) -> list[Ints]:
    """The prompt of every row with the reference answer added, encoded."""
    return rewritten_prompts(
        policy, rows, [partial(add_hint, answer=row.content.answer) for row in rows]
    )


def add_hint(problem: str, answer: str) -> str:
    """The problem's text with the answer after it."""
    return HINT_TEMPLATE.format(problem=problem, answer=answer)


def rewritten_prompts(
    policy: Policy, rows: Sequence[Row], rewrites: Sequence[Callable[[str], str]]
) -> list[Ints]:
    """The prompt of row i, its text changed by `rewrites[i]`, encoded."""
    check_known_texts(policy, rows)
    prompts = [
        row.content.prompt_as_read.rewrite(rewrite_text)
        for row, rewrite_text in zip(rows, rewrites, strict=True)
    ]
    encoded_prompts = {prompt: policy.encode(prompt) for prompt in dict.fromkeys(prompts)}
    return [encoded_prompts[prompt] for prompt in prompts]


def check_known_texts(policy: Policy, rows: Sequence[Row]) -> None:
    """Raise for an episode that began with a message of its environment which was not stored.

    The teacher would read the problem instead of that message, so that its log-probabilities would
    differ by much more than the hint.
    """
    originals: dict[Prompt, Ints] = {}
    for row in rows:
        rollout = row.content
        if not rollout.turns or rollout.first_message:
            continue
        problem = rollout.problem
        if problem not in originals:
            originals[problem] = policy.encode(problem)
        if not np.array_equal(originals[problem], rollout.prompt_tokens):
            raise PoiseError(
                f"{rollout.prompt_id}: its environment began with a message in place of the "
                "problem, and the rollout does not hold that text: choose another credit method"
            )


def check_reference_answers(credit: CreditConfig, problems: Sequence[Prompt]) -> None:
    """Raise where the credit method reads reference answers and no problem has one."""
    methods = {"credit.weights": (credit.weights, "rlsd"), "credit.rule": (credit.rule, "sdpg")}
    for option, (method, method_with_hints) in methods.items():
        if method == method_with_hints and problems and not any(p.answer for p in problems):
            raise PoiseError(
                f"{option}={method} tells a teacher the reference answer, and none of the "
                f"{len(problems)} problems has one: name its column in task.answer_field, or "
                f"choose another {option}"
            )
