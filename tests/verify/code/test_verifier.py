"""Programs against tests: rewards, what is compared where, and programs that lie."""

from __future__ import annotations

import pytest

from counterpoise.errors import PoiseError
from counterpoise.types import Prompt
from counterpoise.variants import VERIFIERS
from counterpoise.verify.check_problems import check_problems
from counterpoise.verify.code import sandbox
from counterpoise.verify.code.checks import from_plain, parse_tests
from counterpoise.verify.code.sandboxed_process import to_plain
from counterpoise.verify.code.verifier import extract_program

TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0\n"
HUMANEVAL = (
    "METADATA = {'author': 'jt'}\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n"
)


def block(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nDone."


def test_scores():
    responses = [
        block("def add(a, b): return a + b"),
        block("def add(a, b): return a - b"),
        block("def add(a, b): return [][0]"),
        block("def add(a, b: return"),
        "def add(a, b): return a + b",
        block("def add(a, b): return 0") + block("def add(a, b): return a + b"),
        "```python\ndef add(a, b): return a + b",  # cut off, but whole
        block("while True: pass"),
        block("import os; os.abort()"),
    ]
    scores = VERIFIERS.load("code")(1.0, 2).score(responses, [TESTS] * len(responses))
    assert scores.rewards == [1, 0, 0, 0, 0, 1, 1, 0, 0]
    assert [entry["code"] for entry in scores.logged] == [
        "passed", "test 1 of 2: wrong", "test 1 of 2: IndexError", "test 1 of 2: SyntaxError",
        "no program", "passed", "passed", "timeout", "crash",
    ]  # fmt: skip
    assert (scores.timeouts, scores.crashes) == (1, 1)
    protection = sandbox.name_protection(sandbox.available_layers())
    assert {entry["sandbox"] for entry in scores.logged} == {protection}


LIES = {
    "ends early": "import os\ndef add(a, b): os._exit(0)",
    "exits": "raise SystemExit(0)",
    "equal to all": "class All:\n  __eq__ = lambda self, o: True\ndef add(a, b): return All()",
    "an int equal to all": (
        "class All(int):\n  __eq__ = lambda self, o: True\n  __hash__ = int.__hash__\n"
        "def add(a, b): return All(7)"
    ),
    "writes replies": (
        "import os\nfor number in range(3, 64):\n  try: os.write(number, "
        "b'[{\"ran\": true, \"value\": true}, {\"ran\": true, \"value\": true}]\\n')\n"
        "  except OSError: pass"
    ),
    "reads frames": (
        "import sys\ndef add(a, b):\n  frame = sys._getframe()\n  seen = []\n"
        "  while frame:\n    seen += [v for v in frame.f_locals.values() if type(v) is int]\n"
        "    frame = frame.f_back\n  return seen[-1] if seen else 0"
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_program_cannot_claim_to_be_right(lie: str):
    tests = "assert add(20, 3) == 23\nassert add(-1, 41) == 40"
    scores = VERIFIERS.load("code")(2.0, 1).score([block(LIES[lie])], [tests])
    assert scores.rewards == [0.0]


@pytest.mark.parametrize(
    ("tests", "program", "reward"),
    [
        ("assert 3 == f()", "f = lambda: 3", 1),
        ("assert f() is None", "f = lambda: None", 1),
        ("assert f() is not None", "f = lambda: None", 0),
        ("assert f()", "f = lambda: [1]", 1),
        ("assert not f()", "f = lambda: {}", 1),
        ("assert not f()", "f = lambda: 1", 0),
        ("assert abs(f() - 0.3) < 1e-6", "f = lambda: 0.1 + 0.2", 1),
        ("assert f() == 0.3", "f = lambda: 0.1 + 0.2", 0),
        ("assert f() == (1, 2)", "f = lambda: [1, 2]", 0),
        ("assert f() == {1, 2}", "f = lambda: {2, 1}", 1),
        ("assert f() == {'a': [1]}", "import collections as c\nf = lambda: c.Counter(a=1)", 0),
        ("assert f() == {'a': 1}", "import collections as c\nf = lambda: c.Counter('a')", 1),
        ("assert f() in (1, 2)", "f = lambda: 2", 1),
        ("assert 3 < f()", "f = lambda: 4", 1),
        ("assert 3 < f()", "f = lambda: 3", 0),
        ("assert 'a' in f()", "f = lambda: ['a']", 1),
        ("assert 'a' not in f()", "f = lambda: 'cat'", 0),
        ("assert f() == 1 and f()", "f = lambda: 1", 1),
        ("assert f() == 1 and f() != 1", "f = lambda: 1", 0),
        ("import math\nassert math.isclose(f(), 2)", "f = lambda: 2.0", 1),
        ("def check(g):\n  assert g() == 5\ncheck(f)", "f = lambda: 5", 1),
        ("def check(g):\n  assert g() == 5\ncheck(f)", "f = lambda: 6", 0),
        ("assert f() == 1", "f = lambda: object()", 0),
        ("assert f() == 1", "f = lambda: int('9' * 5000)", 0),
        ("assert f() > 3", "f = lambda: 10**5000", 1),
        ("assert f() == b'a'", "f = lambda: b'a'", 1),
        ("assert f() == 2j", "f = lambda: 2j", 1),
        ("assert f() == 1", "if __name__ == '__main__': 1 / 0\nf = lambda: 1", 1),
    ],
)  # fmt: skip
def test_forms_of_tests(tests: str, program: str, reward: float):
    assert VERIFIERS.load("code")(2.0, 1).score([block(program)], [tests]).rewards == [reward]


@pytest.mark.parametrize("comparison", ["==", "!=", "<", ">=", "is", "is not", "in", "not in"])
def test_expected_values_stay_outside(comparison: str):
    (check,) = parse_tests(f"assert solve([1, 2]) {comparison} '1234567'")
    assert "1234567" not in check.text
    (mirrored,) = parse_tests(f"assert '1234567' {comparison} solve([1, 2])")
    assert mirrored.text == "solve([1, 2])"
    both = parse_tests(f"assert solve(1) {comparison} '1234567' and '7' {comparison} solve(2)")
    assert [check.text for check in both] == ["solve(1)", "solve(2)"]


@pytest.mark.parametrize("comparison", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("value", [2, 3, 4])
def test_a_literal_on_the_left_means_what_python_means(comparison: str, value: int):
    (check,) = parse_tests(f"assert 3 {comparison} solve()")
    assert check.passes({"value": value}) is eval(f"3 {comparison} {value}")


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.5, "a", [1, [2]], (1,), {"a": {2: (3,)}}, {1, 2}, [], b"a", 1 - 2j,
        [-(9**6000)],
    ],
)  # fmt: skip
def test_plain_values_come_back(value: object):
    assert from_plain(to_plain(value)) == value


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("assert f( == 3", "line 1"),
        *((answer, "no tests") for answer in ("", "# only", "42", "3/4", "(1, 2)", "'Paris'")),
        ("import math\nM = dict(author='a')", "no tests"),
        (HUMANEVAL, "'check' is defined, and no line calls it"),
        ("import unittest\nif __name__ == '__main__':\n    unittest.main()", "no tests"),
    ],
)
def test_answers_that_are_no_tests_are_refused(answer: str, reason: str):
    with pytest.raises(PoiseError, match=f"problem 'p7'.*{reason}"):
        check_problems("code", [Prompt("p7", "Write f.", answer)])


@pytest.mark.parametrize(
    "call",
    ["check(add)", "for n in (1, 2):\n    check(add)", "try:\n    check(add)\nfinally: pass"],
)
def test_a_test_function_that_is_called_is_a_test(call: str):
    responses = [block("def add(a, b): return a + b"), block("def add(a, b): return 0")]
    scores = VERIFIERS.load("code")(1.0, 2).score(responses, [HUMANEVAL + call] * 2)
    assert scores.rewards == [1, 0]


def test_the_last_block_is_the_program():
    assert extract_program("```py\nx = 1\n``` or ```\nx = 2\n```") == "x = 2\n"
    assert extract_program("no block") is None


@pytest.mark.parametrize(
    "around",
    [
        "{}\nIt prints:\n```text\n1\n```\nDone.",
        "{}\nRun it:\n```bash\npython3 a.py\n```\n",
        "Shell first:\n```sh\nls\n```\nthen\n{}",
        "Not closed:\n```text\n1\n{}",
        "The call ```f(1)``` is\nwritten so:\n{}\nand ```g``` so.",
    ],
)
@pytest.mark.parametrize("language", ["", "python", "python3", "py", "Python "])
def test_blocks_of_other_languages_are_no_programs(around: str, language: str):
    if language == "" and around.startswith("Not closed"):
        pytest.skip("a fence without a language closes the block before it")
    program = f"```{language}\nx = 1\n```"
    assert extract_program(around.format(program)) == "x = 1\n"


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (("namespaces", "landlock", "seccomp"), []),
        (("landlock", "seccomp"), []),
        (("landlock",), ["WARNING", "network", "signal other", "processes until"]),
        ((), ["limits only", "read and write your files", "container"]),
    ],
)  # fmt: skip
def test_missing_protection_is_said(
    monkeypatch: pytest.MonkeyPatch, layers: tuple[str, ...], words: list[str]
):
    monkeypatch.setattr(sandbox, "available_layers", lambda: layers)
    line = sandbox.describe_protection()
    assert all(word in line for word in words)
    assert ("WARNING" in line) == bool(words)
    assert "\n" not in line
