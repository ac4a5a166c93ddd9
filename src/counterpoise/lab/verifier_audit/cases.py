r"""Problems with reference answers -> responses with a verdict that is known beforehand.

    itself       the reference in a box                                       1
    forms        the reference written another way (answer_forms.py)                 1
    shuffled     the reference of another problem of the same benchmark       0
    near misses  a digit, a sign, a bracket changed (wrong_answers.py)                0
    parts        of several answers: too few, or too many (wrong_answers.py)          0
    echoes       the reference as a computation still to be done (wrong_answers.py)   0
    asked        a formula of the problem itself                              0
    unboxed      the reference in no box                                      0

Pairs of shuffled references that are the same answer (second_opinion.py decides, not the verifier)
are no case; nor is a formula of the problem that is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from counterpoise.lab.verifier_audit.answer_forms import equivalent_forms
from counterpoise.lab.verifier_audit.second_opinion import same_answer
from counterpoise.lab.verifier_audit.wrong_answers import (
    incomplete_lists,
    near_misses,
    problem_formulas,
    unboxed_responses,
    unevaluated_echoes,
)
from counterpoise.types import Prompt

RIGHT = ("itself", "forms")
WRONG = ("shuffled", "near misses", "parts", "echoes", "asked", "unboxed")
KINDS = (*RIGHT, *WRONG)


@dataclass(frozen=True, slots=True)
class AuditCase:
    """Example: Case("forms", "slash", "\\boxed{1/2}", "\\frac{1}{2}", right=True)"""

    kind: str
    form: str
    response: str
    gold: str
    right: bool


def make_cases(
    problems: Sequence[Prompt], items: int = 0, pairs: int = 1000, seed: int = 0
) -> Iterator[AuditCase]:
    """Every reference against itself, `pairs` shuffled ones, the rest of the first `items`."""
    for problem in problems:
        yield AuditCase("itself", "", box_answer(problem.answer), problem.answer, right=True)
    for answer, gold in shuffled_pairs([problem.answer for problem in problems], pairs, seed):
        yield AuditCase("shuffled", "", box_answer(answer), gold, right=False)
    for problem in problems[: items or None]:
        gold = problem.answer
        for name, text in equivalent_forms(gold):
            yield AuditCase("forms", name, box_answer(text), gold, right=True)
        for kind, found in (
            ("near misses", near_misses(gold)),
            ("parts", incomplete_lists(gold)),
            ("echoes", unevaluated_echoes(gold)),
        ):
            for name, text in found:
                yield AuditCase(kind, name, box_answer(text), gold, right=False)
        for text in problem_formulas(problem.problem, gold):
            yield AuditCase("asked", "", box_answer(text), gold, right=False)
        for name, response in unboxed_responses(gold):
            yield AuditCase("unboxed", name, response, gold, right=False)


def shuffled_pairs(golds: Sequence[str], pairs: int, seed: int) -> list[tuple[str, str]]:
    """Up to `pairs` different pairs (answer, gold) of references that are not the same answer."""
    distinct = list(dict.fromkeys(golds))
    wanted = min(pairs, len(distinct) * (len(distinct) - 1))
    rng, drawn = random.Random(seed), dict[tuple[str, str], bool]()
    while len(drawn) < wanted:
        answer, gold = rng.sample(distinct, 2)
        drawn.setdefault((answer, gold), same_answer(answer, gold))
    return [pair for pair, same in drawn.items() if not same]


def box_answer(answer: str) -> str:
    return f"Therefore the answer is $\\boxed{{{answer}}}$."
