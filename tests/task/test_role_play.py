"""The role-play task, and the two rewards of its replies."""

from __future__ import annotations

import math

import pytest

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.task.role_play import ROLES, load
from counterpoise.types import Prompt
from counterpoise.verify.check_problems import check_problems
from counterpoise.verify.last_number import LastNumberVerifier
from counterpoise.verify.style import bleu, reward, rouge, rouge_l, text_overlap

TASK = load(levels=(1, 2, 3, 4), size=280, heldout=84, needed_columns=("role",))


def test_a_reply_in_character_is_right_and_in_style_and_a_generic_one_only_right() -> None:
    verifier = LastNumberVerifier()
    for prompt in TASK.train:
        in_character = verifier.score([prompt.solution], [prompt.answer]).rewards
        assert in_character == [1.0]
        assert text_overlap(prompt.solution, prompt.solution) == pytest.approx(1.0)
        assert text_overlap(f"{prompt.answer}.", prompt.solution) < 0.2
        assert prompt.problem.endswith(prompt.generic)
        assert prompt.columns["role"] in prompt.problem
        assert prompt.columns["role"] not in prompt.generic


def test_roles_levels_and_splits() -> None:
    assert {prompt.columns["role"] for prompt in TASK.train} == {role.name for role in ROLES}
    assert sum("together" in prompt.problem for prompt in TASK.train) == 140
    assert not {p.problem for p in TASK.train} & {p.problem for p in TASK.heldout}
    assert load(size=3, heldout=1).train[0].columns == {}
    assert load(size=3, heldout=1) == load(size=3, heldout=1)
    # The number that is asked for is not always the first.
    is_first = [p.answer == p.generic.split()[2] for p in TASK.train if "together" not in p.problem]
    assert 0.2 < sum(is_first) / len(is_first) < 0.6


def test_a_column_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(PoiseError, match=r"^task.name=role_play: unknown column 'age' \(choices"):
        load(size=3, heldout=1, needed_columns=("age",))


def test_no_text_is_in_both_splits() -> None:
    """The text does not show in which order the two other things were drawn."""
    task = load(levels=(2,), seed=2)
    assert not {p.problem for p in task.train} & {p.problem for p in task.heldout}


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("12 and 3 make 15!", "15", 1.0),
        ("15 of 16", "15", 0.0),
        ("none", "0", 0.0),
        ("It is 0.", "0", 1.0),
        ("-3", "-3", 1.0),
        ("1,200", "1200", 1.0),
        ("3.0", "3", 1.0),
        ("x15", "15", 0.0),
        ("1.2.3", "3", 0.0),
    ],
)
def test_the_last_number(response: str, answer: str, expected: float) -> None:
    assert LastNumberVerifier().score([response], [answer]).rewards == [expected]


@pytest.mark.parametrize("answer", ["", "red", "3/4", "\\frac{3}{4}", "6 or 7"])
def test_an_answer_that_is_not_one_number_is_refused(answer: str) -> None:
    with pytest.raises(PoiseError, match=r"problem 'p7': its answer .* is not one number"):
        check_problems("last_number", [Prompt("p7", "How many?", answer)])
    numbers = ("-1,200.5", "18 hats", "3 * 4 = 12 in all.\n#### 12")
    check_problems("last_number", [Prompt("p7", "How many?", number) for number in numbers])


def test_overlap_by_hand() -> None:
    words, reference = (
        ["the", "cat", "sat", "on", "the", "mat"],
        ["the", "cat", "is", "on", "the", "mat"],
    )
    assert bleu(words, reference, 1) == pytest.approx(5 / 6)
    assert bleu(words, reference, 2) == pytest.approx(math.sqrt(5 / 6 * 3 / 5))
    assert bleu(words, reference, 4) == 0.0
    assert bleu(words[:3], reference, 1) == pytest.approx(2 / 3 * math.exp(1 - 6 / 3))
    assert rouge(words, reference, 1) == pytest.approx(5 / 6)
    assert rouge(words, reference, 2) == pytest.approx(3 / 5)
    assert rouge_l(words, reference) == pytest.approx(5 / 6)
    assert rouge_l(["a", "b", "c"], ["c", "a", "b"]) == pytest.approx(2 / 3)
    assert text_overlap("", "a") == 0.0
    assert math.isnan(reward(Prompt("a", "", "1"), None, RunConfig()))  # type: ignore[arg-type]
