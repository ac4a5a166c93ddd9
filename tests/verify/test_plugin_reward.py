"""Rewards of the user's: those that the guide shows, and what a function may return."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.errors import PoiseError
from counterpoise.types import Prompt
from counterpoise.variants import VERIFIERS
from counterpoise.verify.plugin_reward import check_rewards
from counterpoise.verify.reward_signatures import RewardArguments, reward_arguments
from counterpoise.verify.scores import score_responses

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "your-data-and-reward.md"
BLOCKS = re.findall(
    r"```python\n# ([\w/.]+)(.*?)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
)


def source(name: str) -> str:
    return next(text for path, _, text in BLOCKS if path.endswith(name))


def test_the_function_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the name that the page gives it, from the folder that it lies in."""
    (tmp_path / "mentioned.py").write_text(source("mentioned.py"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "--set verify.name=mentioned.py:score\n" in PAGE.read_text(encoding="utf-8")
    verifier = VERIFIERS.load("mentioned.py:score")(5.0, 2)
    assert verifier.score(["It is 4.", "It is 5."], ["4", "4"]).rewards == [1.0, -0.1]
    verifier.close()


def test_a_list_function_gets_columns_that_have_names_of_trl(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "def score(responses, *, log_metric, trainer_state, completion_ids):\n"
        "    return [a + b + c for a, b, c in zip(log_metric, trainer_state, completion_ids)]\n"
    )
    columns = {"log_metric": 1.0, "trainer_state": 2.0, "completion_ids": 4.0}
    prompt = Prompt("1", "?", "", columns=columns)
    name = f"{tmp_path}/mine.py:score"
    assert set(reward_arguments(name).columns) == set(columns)
    verifier = VERIFIERS.load(name)()
    assert score_responses(verifier, ["a", "b"], [prompt, prompt]).rewards == [7.0, 7.0]


SHARE_OF_TESTS = """
def score(completions: list[str], tests: list[list[dict]], **_: object) -> list[float]:
    return [
        sum(test["expected"] in completion for test in problem_tests) / len(problem_tests)
        for completion, problem_tests in zip(completions, tests, strict=True)
    ]
"""


def test_a_function_that_asks_for_a_column(tmp_path: Path):
    (tmp_path / "passes_tests.py").write_text(SHARE_OF_TESTS, encoding="utf-8")
    name = f"{tmp_path}/passes_tests.py:score"
    assert reward_arguments(name) == RewardArguments(
        (),
        {"completions": "responses", "tests": "tests"},
        "trl",
        takes_everything=True,
        as_messages=False,
    )
    tests = [{"expected": "4"}, {"expected": "5"}]
    prompt = Prompt("1", "?", "4", columns={"tests": tests})
    rewards = score_responses(VERIFIERS.load(name)(), ["4", "4, 5", ""], [prompt] * 3).rewards
    assert rewards == [0.5, 1.0, 0.0]


R, A, P, T = ["R1", "R2"], ["A", "A"], ["P", "P"], [[0.5], [0.5]]
FORMS: dict[str, dict[str, Any]] = {  # parameters -> what they hold
    "responses, answers": {"responses": R, "answers": A},
    "texts, golds": {"texts": R, "golds": A},
    "texts, golds, scale=2": {"texts": R, "golds": A, "scale": 2},
    "responses, tests": {"responses": R, "tests": A},  # of two, the second is the answers
    "responses, *, tests": {"responses": R, "tests": T},
    "responses": {"responses": R},
    "completions, tests": {"completions": R, "tests": T},
    "completions, tests=None": {"completions": R, "tests": T},
    "completions, marks=None": {"completions": R, "marks": None},
    "completions, answer=None": {"completions": R, "answer": A},
    "prompts, completions": {"prompts": P, "completions": R},
    "answers, responses": {"answers": A, "responses": R},
    "response, answer, prompt": {"response": R, "answer": A, "prompt": P},
    "tests, prompts, responses": {"tests": T, "prompts": P, "responses": R},
    "responses, answers, prompts=None": {"responses": R, "answers": A, "prompts": P},
    "*both": {"both": (R, A)},
    "text, *others": {"text": R, "others": (A,)},
}


@pytest.mark.parametrize("taken", FORMS)
def test_a_function_gets_what_its_parameters_are_called(taken: str, tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(
        f"def score({taken}):\n    assert locals() == {FORMS[taken]}, locals()\n    return [1, 2]\n"
    )
    prompt = Prompt("1", "P", "A", columns={"tests": [0.5]})
    verifier = VERIFIERS.load(f"{path}:score")(5.0, 2)
    assert score_responses(verifier, R, [prompt] * 2).rewards == [1.0, 2.0]


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ("", r"score() has no parameter for the responses: call one of them `resp"),
        ("text", r"score(text) has no parameter for the responses"),
        ("a: str, b, c=3, *, d", "score(a, b, c, d) has no parameter for the responses"),
        ("prompts, tests", "score(prompts, tests) has no parameter for the responses"),
        ("responses, prompts, /", "it cannot be called as score(responses, prompts): 'responses' "),
        ("completion, /", "it cannot be called as score(completion): 'completion' "),
        (
            "data_source, ground_truth, *, extra_info",
            "score(data_source, ground_truth, extra_info) has no",
        ),
    ],
)
def test_one_that_asks_for_no_responses_is_refused(taken: str, said: str, tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(f"def score({taken}):\n    return []\n")
    with pytest.raises(PoiseError) as fault:
        VERIFIERS.load(f"{path}:score")
    assert str(fault.value).startswith(f"{path}: {said}")
    example = "def score(completion, answer): return float(answer in completion)"
    assert str(fault.value).endswith(example)
    assert "\n" not in str(fault.value)


def test_problems_without_the_column_are_one_line(tmp_path: Path):
    """Those of stored rollouts; a task has been asked for the column before."""
    path = tmp_path / "mine.py"
    path.write_text("def score(responses, answers, tests):\n    return []\n")
    with pytest.raises(PoiseError, match=r"mine\.py:score needs the column 'tests', which is not"):
        score_responses(VERIFIERS.load(f"{path}:score")(), ["a"], [Prompt("1", "?", "4")])


@pytest.mark.parametrize(
    "returned",
    [
        [0.5, -2, True],
        (0.5, -2.0, 1),
        np.array([0.5, -2, 1], np.float32),
        torch.tensor([0.5, -2, 1]),
    ],
    ids=["list", "tuple", "array", "tensor"],
)
def test_what_a_function_may_return(returned: Any):
    rewards = check_rewards(returned, 3, "mine.py:score")
    assert rewards == [0.5, -2.0, 1.0]
    assert {type(reward) for reward in rewards} == {float}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "mine.py:score returned None: return a list of 3 numbers, one for each response"),
        (1.0, "mine.py:score returned 1.0: return a list of 3 numbers, one for each response"),
        ((x for x in "abc"), "mine.py:score returned <generator object"),
        ({"a": 1}, "mine.py:score returned {'a': 1}: return a list of 3 numbers"),
        (["right", 0, 0], "mine.py:score returned ['right', 0, 0]: return a list of 3 numbers"),
        ([[1, 2, 3]], "mine.py:score returned [[1, 2, 3]]: return a list of 3 numbers"),
        ([[1], [1, 2], 3], "mine.py:score returned [[1], [1, 2], 3]: return a list of 3 numbers"),
        (torch.ones(3, requires_grad=True), "mine.py:score returned tensor([1., 1., 1.], requires"),
        ([], "mine.py:score returned 0 numbers for 3 responses"),
        ([1.0] * 4, "mine.py:score returned 4 numbers for 3 responses"),
        ([0, math.nan, 1], "mine.py:score returned nan for response 2 of 3: a reward is a finite"),
        (
            [0, 1, -math.inf],
            "mine.py:score returned -inf for response 3 of 3: a reward is a finite",
        ),
        ([None, 0, 1], "mine.py:score returned None for response 1 of 3: a reward is a finite"),
        (
            [0, "1", 1],
            "mine.py:score returned '1' for response 2 of 3: a reward is a finite number",
        ),
        (np.array([b"1"] * 3, object), "mine.py:score returned b'1' for response 1 of 3: a reward"),
        (
            [1e200, 0, 1],
            "mine.py:score returned 1e+200 for response 1 of 3: a reward is a finite number, at",
        ),
        ([10**400, 0, 1], "mine.py:score returned [1000"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_it_may_not(returned: Any, said: str):
    with pytest.raises(PoiseError) as fault:
        check_rewards(returned, 3, "mine.py:score")
    assert str(fault.value).startswith(said)
    assert "\n" not in str(fault.value)
