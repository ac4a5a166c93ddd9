"""Which equations are found in a text, and which of them hold."""

from __future__ import annotations

import pytest

from counterpoise.task.word_problems import make_problem
from counterpoise.verify.equations import EQUATION, share_of_true_equations


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("At first there are 4 * 3 = 12 shells. There remain 12 - 4 = 8 shells.", 1.0),
        ("At first there are 4 * 3 = 12 shells. There remain 12 - 4 = 9 shells.", 0.5),
        ("2 + 3 * 4 = 14", 1.0),  # products first
        ("2 + 3 * 4 = 20", 0.0),
        ("7 / 2 = 3", 0.0),  # exact, not rounded
        ("6 / 2 / 3 = 1 and 10 - 4 - 3 = 3", 1.0),  # from the left
        ("3 / 0 = 0", 0.0),
        ("4 - 6 = -2", 1.0),
        ("4*3=12", 1.0),
        ("1,200 + 3 = 1,203, and 5 - 3 = 2, so", 1.0),
        ("1,200 + 3 = 1,204", 0.0),
        (r"The answer is \boxed{12}.", 0.0),  # no equation
        ("12 = 12 and x = 3", 0.0),  # nothing is computed
        ("", 0.0),
    ],
)
def test_shares_by_hand(text: str, share: float) -> None:
    assert share_of_true_equations(text) == share


@pytest.mark.parametrize(
    "text",
    ["1.5 * 2 = 3", "12 / 5 = 2.4", "(2 + 3) * 4 = 20", "10^2 + 1 = 101", "9" * 13 + " + 1 = 2"],
)
def test_what_is_no_equation_of_whole_numbers_is_left_alone(text: str) -> None:
    assert EQUATION.findall(text) == []


def test_a_chain_is_cut_where_it_begins() -> None:
    assert EQUATION.findall("4 * 3 = 12 - 4 = 8") == [("4 * 3", "12")]


def test_the_worked_solutions_of_the_embedded_task_are_all_true() -> None:
    found = [make_problem("train", i) for i in range(200)]
    assert all(share_of_true_equations(prompt.solution) == 1.0 for prompt in found)
    careless = [make_problem("train", i, slips=0.5) for i in range(200)]
    shares = [share_of_true_equations(prompt.solution) for prompt in careless]
    assert 0.5 < sum(shares) / len(shares) < 0.95
