"""Tables of variants: every name loads, an unknown one is met with the nearest."""

from __future__ import annotations

import pytest

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.model.templates import AUTO, TEMPLATES
from counterpoise.plugins import Registry
from counterpoise.variants import (
    ADVANTAGES,
    AGGREGATIONS,
    BALANCE_SIGNS,
    BALANCE_UNITS,
    COMPOSER_PROMISES,
    COMPOSERS,
    PANELS,
    PROMPT_TEMPLATES,
    SURROGATES,
    TASKS,
    TOKEN_WEIGHTS,
    VERIFIERS,
)

TABLES = {
    "advantages": ADVANTAGES, "weights": TOKEN_WEIGHTS, "composers": COMPOSERS,
    "promises": COMPOSER_PROMISES,
    "units": BALANCE_UNITS, "signs": BALANCE_SIGNS, "tasks": TASKS, "surrogates": SURROGATES,
    "aggregations": AGGREGATIONS,
    "verifiers": VERIFIERS, "panels": PANELS,
}  # fmt: skip
ENTRIES = [(table, name) for table in TABLES for name in TABLES[table]]


@pytest.mark.parametrize(("table", "name"), ENTRIES)
def test_every_entry_loads(table: str, name: str) -> None:
    assert callable(TABLES[table].load(name))


def test_what_the_issue_promises_is_there() -> None:
    assert set(ADVANTAGES) >= {"grpo", "dr_grpo", "rloo", "positive_only"}
    assert set(COMPOSERS) >= {
        "grouped", "shuffled", "token_balanced", "zigzag", "by_sign", "whole",
    }  # fmt: skip
    assert set(SURROGATES) >= {"grpo", "gspo", "cispo", "reinforce"}
    assert set(AGGREGATIONS) >= {"token_mean", "group_token_mean", "sequence_mean", "constant"}
    assert set(TASKS) >= {"word_problems", "jsonl", "hub", "reasoning_gym"}
    assert set(VERIFIERS) >= {"math", "exact"}
    assert set(BALANCE_UNITS) == {"rollout", "group", "experimental_anti_rollout"}
    assert set(BALANCE_SIGNS) == {"advantage", "reward"}


def test_a_table_is_a_mapping_of_strings_and_loads_late() -> None:
    table = Registry("root", {"real": "math:sqrt", "gone": "no.such.module:f"})
    assert list(table) == ["real", "gone"]
    assert len(table) == 2
    assert table["real"] == "math:sqrt"
    assert table.load("real")(9.0) == 3.0
    with pytest.raises(ModuleNotFoundError):  # a fault of ours, not of the user's
        table.load("gone")


def test_a_table_does_not_follow_the_dictionary_it_was_made_from() -> None:
    entries = {"real": "math:sqrt"}
    table = Registry("root", entries)
    entries["other"] = "math:exp"
    assert list(table) == ["real"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("groupd", "unknown rule 'groupd': did you mean 'grouped'? (choices: grouped, shuffled)"),
        ("shufle", "unknown rule 'shufle': did you mean 'shuffled'? (choices: grouped, shuffled)"),
        ("xyz", "unknown rule 'xyz' (choices: grouped, shuffled)"),
        ("", "unknown rule '' (choices: grouped, shuffled)"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_met_with_the_nearest(name: str, message: str) -> None:
    assert str(unknown_name("rule", name, ["shuffled", "grouped"])) == message
    with pytest.raises(PoiseError, match=r"^unknown rule"):
        Registry("rule", {"shuffled": "a:b", "grouped": "a:b"}).load(name)


def test_prompt_templates_are_those_that_the_model_knows() -> None:
    assert (AUTO, *TEMPLATES) == PROMPT_TEMPLATES
