"""Generated problems: repeatable, disjoint, and answered."""

import sys

import pytest

from counterpoise.errors import PoiseError
from counterpoise.task.reasoning_gym import generate, load
from counterpoise.task.split_heldout import normalize_problem
from counterpoise.variants import TASKS


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(PoiseError, match=r"pip install 'counterpoise\[gym\]'"):
        load("chain_sum")


def test_a_name_is_needed():
    with pytest.raises(PoiseError, match=r"set task\.dataset"):
        load("")


class TestWithThePackage:
    @pytest.fixture(autouse=True)
    def package(self):
        pytest.importorskip("reasoning_gym", reason="the gym extra is not installed")

    def test_problems_are_repeatable_and_disjoint(self):
        first = TASKS.load("reasoning_gym")("chain_sum", size=40, heldout=10, seed=3)
        second = load("chain_sum", size=40, heldout=10, seed=3)
        other = load("chain_sum", size=40, heldout=10, seed=4)
        assert first == second
        assert first != other
        assert first.name == "chain_sum"
        assert (len(first.train), len(first.heldout)) == (40, 10)
        assert first.train[0].id == "chain_sum/train/0"
        assert all(p.problem and p.answer for p in [*first.train, *first.heldout])

    def test_repeated_problems_are_dropped(self):
        task = load("coin_flip", size=60, heldout=2, seed=0)
        texts = [normalize_problem(p.problem) for p in [*task.train, *task.heldout]]
        assert len(texts) == len(set(texts))
        both = [normalize_problem(p.problem) for p in generate("coin_flip", "train", 60, 0)]
        assert task.repeats == len(set(both) & set(texts[len(task.train) :])) > 0

    def test_a_reward_may_ask_for_what_the_generator_says(self):
        task = load("chain_sum", size=3, heldout=2, needed_columns=["metadata"])
        for prompt in (*task.train, *task.heldout):
            assert prompt.columns["metadata"]["source_dataset"] == "chain_sum"
        with pytest.raises(PoiseError, match=r"'meta'.*\(choices: answer, metadata, question\)"):
            load("chain_sum", size=3, heldout=2, needed_columns=["meta"])

    def test_no_held_out_problems(self):
        assert load("chain_sum", size=5, heldout=0).heldout == []

    def test_an_unknown_name_is_met_with_the_nearest(self):
        with pytest.raises(PoiseError, match=r"'chain_sums': did you mean 'chain_sum'"):
            load("chain_sums")

    def test_a_dataset_without_reference_answers_is_refused(self):
        with pytest.raises(PoiseError, match=r"'graph_color' gives no reference answer"):
            load("graph_color", size=2, heldout=1)

    def test_a_dataset_that_needs_options_is_refused(self):
        with pytest.raises(PoiseError, match=r"'composite': Must specify"):
            load("composite", size=2, heldout=1)
