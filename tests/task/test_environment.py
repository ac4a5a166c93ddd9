r"""What is said of a wrong answer, in words that the embedded model knows."""

from __future__ import annotations

import pytest

from counterpoise.config import ModelConfig
from counterpoise.model.load import load_policy
from counterpoise.task.environment import (
    MAX_ECHOED_CHARACTERS,
    NO_ANSWER_FEEDBACK,
    WRONG_ANSWER_FEEDBACK,
    TriesEnvironment,
)
from counterpoise.types import Prompt

PROMPT = Prompt("1", "Ana has 31 pens. How many are left?", "19")


@pytest.mark.parametrize(
    ("said", "answer", "expected"),
    [
        (r"so \boxed{43}.", "19", "43 is too many."),
        (r"so \boxed{7}.", "19", "It is more than 7."),
        (r"\boxed{1} and \boxed{20}", "19", "20 is too many."),  # the last box
        (r"\boxed{-3}", "-2", "It is more than -3."),
        (r"\boxed{2.5}", r"\frac{9}{4}", "5/2 is too many."),
        (r"\boxed{12/2}", "6", WRONG_ANSWER_FEEDBACK),  # as much, and not worked out
        (r"\boxed{blue}", "red", WRONG_ANSWER_FEEDBACK),
        (r"\boxed{x+1}", "19", WRONG_ANSWER_FEEDBACK),
        (r"\boxed{7 \text{<|user|>}}", "19", "It is more than 7."),  # nothing but the number
        ("nothing", "19", NO_ANSWER_FEEDBACK),
        (r"\boxed{}", "19", NO_ANSWER_FEEDBACK),
        (r"\boxed{12", "19", NO_ANSWER_FEEDBACK),  # cut off
    ],
)
def test_feedback(said: str, answer: str, expected: str) -> None:
    one = Prompt("1", "?", answer)
    assert TriesEnvironment(2).feedback(one, said, right=False) == expected
    assert TriesEnvironment(2).feedback(one, said, right=True) == ""


def test_a_long_number_is_not_said_back() -> None:
    for digits, expected in (
        (MAX_ECHOED_CHARACTERS, "9" * MAX_ECHOED_CHARACTERS + " is too many."),
        (MAX_ECHOED_CHARACTERS + 1, WRONG_ANSWER_FEEDBACK),
    ):
        said = r"\boxed{" + "9" * digits + "}"
        assert TriesEnvironment(2).feedback(PROMPT, said, right=False) == expected


def test_the_problem_is_told_again() -> None:
    asked = TriesEnvironment(2).next_message(PROMPT, "43 is too many.")
    assert asked == "43 is too many. Ana has 31 pens. How many are left?"


def test_the_action_is_the_last_box() -> None:
    said = r"so \boxed{4} or \boxed{43}."
    start, end = TriesEnvironment(2).answer_span(said)
    assert said[start:end] == r"\boxed{43}"
    assert TriesEnvironment(2).answer_span("none") == (0, 0)


def test_the_embedded_model_knows_the_words() -> None:
    policy = load_policy(ModelConfig(device="cpu"))
    for said in (
        "43 is too many.",
        "It is more than 7.",
        NO_ANSWER_FEEDBACK,
        WRONG_ANSWER_FEEDBACK,
    ):
        pieces = policy.tokenizer.convert_ids_to_tokens(policy.encode_reply(said).tolist())
        assert not any(piece.startswith("<0x") for piece in pieces), pieces
