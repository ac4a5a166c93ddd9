"""The mathematics of a text is the same in any spelling and any language."""

import pytest

from counterpoise.task.contamination.symbols import is_cjk, numbers_in, symbol_runs

SPELLINGS = [
    r"Let $\dfrac{a_{1}}{2} \leqslant 1{,}000$ hold for all $\overline{AB}$.",
    r"Suppose that \( \frac{a_1}2\le 1000 \) holds whenever AB is fixed",
    r"设 \df{a_1}{2}\leq 1,000 对所有线段 AB 成立",
    r"Let \[\frac{ a_{1} }{2}\ \leq\ 1000\] be true of all segments $A B$",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_one_formula_in_four_spellings(text):
    first = ("\\frac", "a", "_", "1", "2", "\\le", "1000")
    assert symbol_runs(text) == [first, ("A", "B")]


def test_prose_ends_a_run_and_a_lone_letter_is_none():
    assert symbol_runs("Take a pen, $x$ pens and $y = 2$ pens") == [("y", "=", "2")]


def test_money_is_no_formula():
    assert symbol_runs("She pays $2 for milk and has $3 left") == [("2",), ("3",)]


def test_number_words_are_numbers():
    assert numbers_in(symbol_runs("three of 12 boxes hold $2$ pens")) == ["3", "12", "2"]
    assert numbers_in(symbol_runs("Three people and three dogs; $TEN$")) == ["3", "3"]


def test_text_inside_a_formula_ends_a_run():
    assert symbol_runs(r"\[x = 1 \text{ and so } y = 2\]") == [("x", "=", "1"), ("y", "=", "2")]


def test_scripts():
    assert [is_cjk(text) for text in ("求 x", "かず", "x² – ¼ π")] == [True, True, False]
