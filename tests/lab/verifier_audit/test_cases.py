"""The cases say what they claim: forms are equal, misses are not, by the second opinion."""

import json
from pathlib import Path

import pytest

from counterpoise.lab.verifier_audit.answer_forms import equivalent_forms, top_level_entries
from counterpoise.lab.verifier_audit.cases import KINDS, make_cases, shuffled_pairs
from counterpoise.lab.verifier_audit.second_opinion import parse_answer, same_answer
from counterpoise.lab.verifier_audit.wrong_answers import (
    incomplete_lists,
    near_misses,
    problem_formulas,
    unboxed_responses,
    unevaluated_echoes,
)
from counterpoise.types import Prompt

GOLDS = [
    "11", "-7", "1234", r"\frac{3}{4}", r"-\frac{7}{2}", "0.25", r"30^\circ", r"\$5", "8\\%",
    r"5.4 \text{ cents}", r"2\sqrt{3}", "1, 2, 3", "(3, 5)", r"\left( 3, \frac{\pi}{2} \right)",
    "y = 2x + 3", "p - q", r"4.5 \times 10^{33}", "10,080", r"\text{Evelyn}", "x^2+1",
]  # fmt: skip
UNITS_OF_OUR_OWN = {"unit", "square unit", "no percent", "percent in words", "and", "e"}


@pytest.mark.parametrize("gold", GOLDS)
def test_a_form_has_the_value_of_its_gold(gold):
    for name, text in equivalent_forms(gold):
        if (
            name not in UNITS_OF_OUR_OWN
            and parse_answer(text) is not None
            and parse_answer(gold) is not None
        ):
            assert same_answer(text, gold), name


def test_forms_of_a_fraction():
    assert dict(equivalent_forms(r"\frac{7}{2}")).items() >= {
        "slash": "7/2", "decimal": "3.5", "mixed": r"3\frac{1}{2}", "not reduced": r"\frac{14}{4}",
        "dfrac": r"\dfrac{7}{2}", "no braces": r"\frac72",
    }.items()  # fmt: skip


def test_forms_of_a_list_keep_its_entries():
    found = dict(equivalent_forms("3, 5, 7"))
    assert found["reversed"] == "7, 5, 3"
    assert found["set"] == r"\{3, 5, 7\}"
    assert found["and"] == r"3, 5 \text{ and } 7"
    assert "reversed" not in dict(equivalent_forms("(3, 5)"))


def test_a_number_with_separators_is_no_list():
    assert top_level_entries("10,080") == ["10,080"]
    assert top_level_entries(r"\$32,\!348") == [r"\$32,\!348"]
    assert top_level_entries("(1,2), (3,4)") == ["(1,2)", "(3,4)"]


@pytest.mark.parametrize("gold", GOLDS)
def test_a_miss_is_another_answer(gold):
    assert not any(
        same_answer(text, gold) for _, text in [*near_misses(gold), *incomplete_lists(gold)]
    )


def test_an_echo_has_the_value_and_is_not_the_text():
    for gold in ("11", "-7", r"\frac{3}{4}", r"2\sqrt{3}"):
        found = [
            text for name, text in unevaluated_echoes(gold) if name not in ("series", "equation")
        ]
        assert found
        assert all(same_answer(text, gold) for text in found)
        assert gold not in found
    assert list(unevaluated_echoes("x^2+1")) == []


def test_formulas_of_a_problem():
    problem = r"Simplify $\sqrt{242}$. Given $x = 5$ and $12$ swans, \[a+b = 7\]"
    assert problem_formulas(problem, "5") == [r"\sqrt{242}", "a+b = 7"]


def test_no_box_in_an_unboxed_answer():
    assert all(r"\boxed{5}" not in response for _, response in unboxed_responses("5"))


def test_shuffled_pairs_are_different_and_repeatable():
    golds = ["1", "2", "0.5", r"\frac{1}{2}", "3", "1"]
    pairs = shuffled_pairs(golds, 1000, seed=0)
    assert len(pairs) == 5 * 4 - 2
    assert ("0.5", r"\frac{1}{2}") not in pairs
    assert pairs == shuffled_pairs(golds, 1000, seed=0)
    assert shuffled_pairs(["1"], 10, seed=0) == []


def test_kinds_and_how_many():
    problems = [Prompt(str(i), f"What is ${i}+1$?", str(i + 1)) for i in range(6)]
    made = list(make_cases(problems, items=2, pairs=9))
    count = {kind: sum(case.kind == kind for case in made) for kind in KINDS}
    assert (count["itself"], count["shuffled"], count["asked"], count["unboxed"]) == (6, 9, 2, 8)
    assert all(case.right == (case.kind in ("itself", "forms")) for case in made)


def test_real_golds_make_forms():
    """On a real file: most golds that are no plain words get forms, and no form is the gold."""
    path = Path(__file__).parents[4] / "shared" / "data" / "math500.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there: benchmark answers are not part of the repository")
    golds = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    assert all(len(equivalent_forms(gold)) >= 4 for gold in golds)
    assert all(text != gold for gold in golds for _, text in equivalent_forms(gold))
