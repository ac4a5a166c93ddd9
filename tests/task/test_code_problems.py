"""Generated programming problems: pure, disjoint, and solved by their own solutions."""

from __future__ import annotations

import random

import pytest

from counterpoise.task import code_problems
from counterpoise.task.code_problems import NUMBERS, TEXT, load, make_problem, write_program
from counterpoise.variants import TASKS
from counterpoise.verify.code.checks import parse_tests
from counterpoise.verify.code.verifier import CodeVerifier, extract_program


def test_problems_are_pure_and_splits_are_disjoint():
    task = TASKS.load("code_problems")([2, 3], size=300, heldout=60, seed=1)
    assert task.train[:5] == load([2, 3], size=300, heldout=60, seed=1).train[:5]
    assert task.train[0] != load([2, 3], size=300, heldout=60, seed=2).train[0]
    texts = [prompt.problem for prompt in [*task.train, *task.heldout]]
    assert len(texts) == len(set(texts)) > 300
    programs = {prompt.solution for prompt in task.train}
    assert not programs & {prompt.solution for prompt in task.heldout}


def test_every_solution_passes_its_tests_and_no_other():
    prompts = [make_problem("train", index, [1, 2, 3, 4]) for index in range(12)]
    tests = [prompt.answer for prompt in prompts]
    verifier = CodeVerifier(2.0, 2)
    assert verifier.score([prompt.solution for prompt in prompts], tests).rewards == [1.0] * 12
    others = [prompts[i - 1].solution for i in range(12)]
    assert sum(verifier.score(others, tests).rewards) == 0


@pytest.mark.parametrize(
    ("subject", "argument", "place", "expected"),
    [
        (NUMBERS, [3, -2, 4], 0, [-2, 4]),
        (NUMBERS, [3, -1, 4], 1, [3, -1]),
        (NUMBERS, [3, 2, 4], 2, [3, 4]),
        (NUMBERS, [3, 2, 4], 3, [3]),
        (NUMBERS, [3, 2], 4, [5, 4]),
        (NUMBERS, [3, 2], 5, [6, 4]),
        (NUMBERS, [3, -2], 6, [9, 4]),
        (NUMBERS, [3, -2], 7, [3, 2]),
        (NUMBERS, [3, 2], 8, [2, 3]),
        (NUMBERS, [3, 1, 2], 9, [1, 2, 3]),
        (NUMBERS, [3, 1, 3], 10, [3, 1]),
        (NUMBERS, [3, 1, 3], 11, [3]),
        (NUMBERS, [3, 1, 4, 1], 12, [3, 4]),
        (NUMBERS, [3, 1, 4], 13, [-2, 3]),
        (NUMBERS, [3, 1, 4], 14, [3, 4, 8]),
        (TEXT, "tea at sea", 0, "tea sea"),
        (TEXT, "tea to sea", 1, "tea sea"),
        (TEXT, "ant bee", 2, "bee"),
        (TEXT, "tea to", 3, "aet ot"),
        (TEXT, "tea to", 4, "TEA TO"),
        (TEXT, "tea rose", 5, "te ro"),
        (TEXT, "tea rose at", 6, "at rose tea"),
        (TEXT, "tea rose at", 7, "at rose tea"),
        (TEXT, "tea at tea", 8, "tea at"),
        (TEXT, "tea at sea", 9, "tea"),
    ],
)  # fmt: skip
def test_each_step_does_what_its_phrase_says(subject, argument, place, expected):
    """Worked by hand from the phrases, with k = 2 and c = "a"."""
    phrase, expression = (text.format(k=2, c="a") for text in subject.steps[place])
    program = write_program(subject, [(phrase, expression)], subject.returns[0])
    names: dict = {}
    exec(program, names)
    assert names["solve"](argument) == expected, phrase


def test_tests_differ_in_what_they_expect():
    for index in range(40):
        checks = parse_tests(make_problem("heldout", index).answer)
        assert len(checks) == code_problems.NUM_TESTS
        assert len({repr(check.expected) for check in checks}) > 1
    program = "def solve(numbers):\n    return 0\n"
    assert code_problems.write_tests(NUMBERS, program, random.Random(0)) == ""
    assert extract_program(make_problem("train", 0).solution)
