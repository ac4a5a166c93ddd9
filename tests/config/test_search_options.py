"""Options by the words that people use for them."""

from __future__ import annotations

import pytest

from counterpoise.config.load import config_from_tables, list_options
from counterpoise.config.search_options import (
    REMARKS,
    SYNONYMS,
    find_remark,
    search_options,
    suggest_option,
)
from counterpoise.errors import PoiseError

NAMES = [name for name, _, _ in list_options()]


def names_for(query: str) -> list[str]:
    return [name for name, _, _ in search_options(query, list_options())]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("reward", ["verify.name", "verify.also", "credit.mixture"]),
        ("loss", ["update.surrogate", "update.aggregate"]),
        ("kl", ["update.kl", "update.kl_estimator", "update.kl_in"]),
        ("lr", ["update.lr", "warmup.lr"]),
        ("learning_rate", ["update.lr", "warmup.lr"]),
        ("learning rate", ["update.lr", "warmup.lr"]),
        ("learning_rte", ["update.lr", "warmup.lr"]),
        ("num_generations", ["sample.group_size"]),
        ("max_completion_length", ["sample.max_new_tokens"]),
        ("epsilon", ["update.clip_low", "update.clip_high"]),
        ("Batch-Size", ["sample.prompts", "batch.steps", "update.micro_tokens"]),
        ("beta", ["update.kl", "update.kl_estimator", "update.kl_in", "update.beta2"]),
        ("seed", ["loop.seed", "task.seed"]),
        ("shuffle_dataset", ["sample.choose", "batch.composer"]),
        ("dataset", ["task.path", "task.name", "task.dataset"]),
    ],
)
def test_the_best_matches_come_first(query: str, best: list[str]) -> None:
    assert names_for(query)[: len(best)] == best


def test_a_section_or_a_full_name_lists_nothing_else() -> None:
    for query in ("balance", "balance."):
        assert names_for(query) == [name for name in NAMES if name.startswith("balance.")]
    assert names_for("update.lr") == ["update.lr"]


def test_explanations_are_searched() -> None:
    assert "sample.refills" in names_for("DAPO")
    assert names_for("zzzzzz") == []


def test_every_synonym_names_options_that_exist() -> None:
    assert {name for targets in SYNONYMS.values() for name in targets} <= set(NAMES)
    assert {word for words in REMARKS for word in words} <= set(SYNONYMS)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("loop.learning_rate", "update.lr"),
        ("loop.lr", "update.lr"),
        ("--lr", "update.lr"),
        ("actor.optim.lr", "update.lr"),
        ("evaluate.promts", "evaluate.prompts"),  # a misspelling stays in its section
        ("loop.num_generation", "sample.group_size"),
        ("loop.zzzzzz", None),
    ],
)
def test_a_suggestion_crosses_sections(name: str, suggestion: str | None) -> None:
    assert suggest_option(name, list_options()) == suggestion


def test_an_exact_suggestion_needs_the_word_itself() -> None:
    assert suggest_option("--learning-rate", list_options(), exact=True) == "update.lr"
    assert suggest_option("--rsume", list_options(), exact=True) is None


def test_an_option_in_the_wrong_section_is_one_line_with_the_right_one() -> None:
    with pytest.raises(PoiseError, match=r"^--set loop\.learning_rate=1: .*mean 'update\.lr'\?"):
        config_from_tables({}, ["loop.learning_rate=1"])
    with pytest.raises(PoiseError, match=r"unknown section 'optim': did you mean 'update\.lr'\?$"):
        config_from_tables({"optim": {"lr": 1e-5}}, where="run.toml")
    with pytest.raises(PoiseError, match=r"for example sample\.group_size=8$"):
        config_from_tables({}, ["num_generations=8"])
    with pytest.raises(PoiseError, match=r"did you mean 'update\.kl'\? The reference of the KL is"):
        config_from_tables({}, ["update.beta=0.1"])


def test_what_trl_means_otherwise_is_remarked() -> None:
    assert "the initial policy" in find_remark("beta")
    assert find_remark("learning_rate") == ""
