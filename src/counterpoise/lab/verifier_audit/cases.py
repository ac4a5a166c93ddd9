r"""Make test cases from reference answers: responses whose correct score is known.

    itself       the reference in a box                                              1
    forms        the reference written another way (answer_forms.py)                 1
    shuffled     the reference of another problem of the same benchmark              0
    near misses  a digit, a sign, a bracket changed (wrong_answers.py)               0
    parts        too few or too many of several answers (wrong_answers.py)           0
    echoes       the reference as an unevaluated computation (wrong_answers.py)      0
    asked        a formula of the problem itself                                     0
    unboxed      the reference without a box                                         0

Pairs of shuffled references that are the same answer are left out (second_opinion.py decides, not
the verifier), and so are formulas of the problem that state the answer.
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
    """A response, its reference answer, and whether it is right.

    Example:
        AuditCase("forms", "slash", "\\boxed{1/2}", "\\frac{1}{2}", right=True)
    """

    kind: str
    form: str
    response: str
    gold: str
    right: bool


def make_cases(
    problems: Sequence[Prompt], items: int = 0, pairs: int = 1000, seed: int = 0
) -> Iterator[AuditCase]:
    """All references as they are, `pairs` shuffled ones, and all other kinds for `items` problems.

    `items=0` means all problems.
    """
    for problem in problems:
        yield AuditCase("itself", "", box_answer(problem.answer), problem.answer, right=True)
    for answer, gold in shuffled_pairs([problem.answer for problem in problems], pairs, seed):
        yield AuditCase("shuffled", "", box_answer(answer), gold, right=False)
    for problem in problems[: items or None]:
        gold = problem.answer
        for name, text in equivalent_forms(gold):
            yield AuditCase("forms", name, box_answer(text), gold, right=True)
        for kind, wrong_forms in (
            ("near misses", near_misses(gold)),
            ("parts", incomplete_lists(gold)),
            ("echoes", unevaluated_echoes(gold)),
        ):
            for name, text in wrong_forms:
                yield AuditCase(kind, name, box_answer(text), gold, right=False)
        for text in problem_formulas(problem.problem, gold):
            yield AuditCase("asked", "", box_answer(text), gold, right=False)
        for name, response in unboxed_responses(gold):
            yield AuditCase("unboxed", name, response, gold, right=False)


def shuffled_pairs(golds: Sequence[str], pairs: int, seed: int) -> list[tuple[str, str]]:
    """Up to `pairs` distinct pairs (answer, gold) of references that are different answers."""
    distinct = list(dict.fromkeys(golds))
    target_count = min(pairs, len(distinct) * (len(distinct) - 1))
    rng, pairs_seen = random.Random(seed), dict[tuple[str, str], bool]()
    # Pairs with equal answers are remembered too: otherwise the loop would never end for a
    # benchmark with few distinct answers.
    while len(pairs_seen) < target_count:
        answer, gold = rng.sample(distinct, 2)
        pairs_seen.setdefault((answer, gold), same_answer(answer, gold))
    return [pair for pair, same in pairs_seen.items() if not same]


def box_answer(answer: str) -> str:
    return f"Therefore the answer is $\\boxed{{{answer}}}$."
