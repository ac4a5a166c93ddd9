"""Rewards besides the verifier's: read from the run file, computed for every response."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from counterpoise import plugins
from counterpoise.config import RunConfig, SampleConfig, VerifyConfig
from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError
from counterpoise.types import Prompt, Response
from counterpoise.verify.extra_rewards import (
    check_references,
    extra_reward_weights,
    plugin_rewards,
    reward_columns,
    score_extra_rewards,
    verifier_needs,
)
from counterpoise.verify.reward_process import shared_process
from counterpoise.verify.scores import Scores


@pytest.mark.parametrize(
    ("also", "fault"),
    [
        (["overlnog"], "verify.also: unknown reward 'overlnog'"),
        (["overlong", "overlong=2"], "verify.also: 'overlong' is listed twice"),
        (["overlong=much"], "verify.also: 'overlong=much' has no weight above 0"),
        (["overlong=0"], "no weight above 0"),
        (["overlong=-1"], "no weight above 0"),
        (["overlong=inf"], "no weight above 0"),
        (["overlong="], "no weight above 0"),
        (["mine.py:f="], "verify.also: 'mine.py:f=' has no weight above 0: write mine.py:f=0.5"),
        (["mine.py:f:g h"], "'mine.py:f:g h' names no function"),
        (["a/mine.py:f", "b/mine.py:f=2"], "verify.also: 'mine.py:f' is listed twice"),
    ],
)
def test_faults_name_the_entry(also: list[str], fault: str) -> None:
    with pytest.raises(PoiseError, match=fault):
        extra_reward_weights(also)


def response(length: int, text: str) -> Response:
    return Response(np.zeros(length, np.int32), np.zeros(length, np.float32), text, True)


def test_every_response_has_every_reward() -> None:
    config = RunConfig(
        sample=SampleConfig(max_new_tokens=10),
        verify=VerifyConfig(also=["equations=0.5", "overlong"], overlong_tokens=4),
    )
    prompts = [Prompt("a", "?", "1"), Prompt("b", "?", "2")]
    responses = [[response(8, "1 + 1 = 2"), response(2, "1 + 1 = 3")], [response(10, "")]]
    assert score_extra_rewards(prompts, responses, config).rewards_PG == [
        [{"equations": 1.0, "overlong": -0.5}, {"equations": 0.0, "overlong": 0.0}],
        [{"equations": 0.0, "overlong": -1.0}],
    ]
    assert score_extra_rewards(prompts, responses, RunConfig()).rewards_PG == [[{}, {}], [{}]]


def test_those_of_the_users_are_asked_once_about_all(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def brief(responses, answers):\n    return [-len(r) for r in responses]\n"
        "def marks(prompts, responses, marks):\n"
        "    assert len(prompts) == 3\n"
        "    return [m if p in r else 0 for p, r, m in zip(prompts, responses, marks)]\n"
    )
    also = [f"{path}:brief=0.5", "overlong", f"{path}:marks = 2"]
    verify = config_from_tables({"verify": {"also": also, "overlong_tokens": 4}}).verify
    pin = plugins.parse_plugin_name(verify.also[0]).digest
    assert verify.also == [f"{path}:brief@{pin}=0.5", "overlong", f"{path}:marks@{pin}=2"]
    assert extra_reward_weights(verify.also) == {
        "mine.py:brief": 0.5,
        "overlong": 1.0,
        "mine.py:marks": 2.0,
    }
    assert plugin_rewards(verify) == [f"{path}:brief@{pin}", f"{path}:marks@{pin}"]
    assert reward_columns(verify) == ("marks",)
    config = RunConfig(sample=SampleConfig(max_new_tokens=10), verify=verify)
    prompts = [
        Prompt("a", "ab", "1", columns={"marks": 7}),
        Prompt("b", "ba", "2", columns={"marks": 9}),
    ]
    responses = [[response(8, "abc"), response(2, "")], [response(10, "ba")]]
    assert score_extra_rewards(prompts, responses, config).rewards_PG == [
        [
            {"mine.py:brief": -3.0, "overlong": -0.5, "mine.py:marks": 7.0},
            {"mine.py:brief": 0.0, "overlong": 0.0, "mine.py:marks": 0.0},
        ],
        [{"mine.py:brief": -2.0, "overlong": -1.0, "mine.py:marks": 9.0}],
    ]


def test_what_they_lose_and_log_is_added_to_the_verifiers_scores(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import os\n"
        "def dies(completion):\n"
        "    if completion == 'die': os._exit(3)\n"
        "    return 0.5\n"
        "def logs(solution_str, ground_truth):\n"
        "    return {'score': 1.0, 'length': len(solution_str), 'seen': 'extra'}\n"
    )
    verify = VerifyConfig(also=[f"{path}:dies", f"{path}:logs"], reward_timeout_seconds=30.0)
    responses = [response(1, "die"), response(1, "live")]
    extra = score_extra_rewards([Prompt("a", "?", "1")], [responses], RunConfig(verify=verify))
    assert math.isnan(extra.rewards_PG[0][0]["mine.py:dies"])
    assert extra.rewards_PG[0][1] == {"mine.py:dies": 0.5, "mine.py:logs": 1.0}
    scores = Scores([1.0, 0.0], timeouts=2, logged=[{}, {"seen": "verifier"}])
    for extra_scores in extra.scores:
        scores = scores.add_failures_and_logs(extra_scores)
    assert (scores.rewards, scores.timeouts, scores.crashes) == ([1.0, 0.0], 2, 1)
    assert scores.logged == [
        {"lost": "crash", "length": 3, "seen": "extra"},
        {"length": 4, "seen": "verifier"},
    ]
    metrics = Scores([0.0], logged_metrics={"a": (1.0,)}).add_failures_and_logs(
        Scores([0.0], logged_metrics={"a": (2.0,), "b": (3.0,)})
    )
    assert metrics.logged_metrics == {"a": (1.0, 2.0), "b": (3.0,)}
    shared_process(30.0).close()


def test_which_verifiers_need_columns_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def brief(completions, tests): return [0.0] * len(completions)\n"
        "def same(responses, answers): return [float(a == b) for a, b in zip(responses, answers)]\n"
    )
    assert verifier_needs("math") == ((), True)
    assert verifier_needs("verifiers") == ((), False)  # its tasks know what they reward
    assert verifier_needs(f"{path}:brief") == (("tests",), False)
    assert verifier_needs(f"{path}:same") == ((), True)


def test_style_without_any_worked_solution_is_refused() -> None:
    config = VerifyConfig(also=["style=0.5"])
    check_references(config, [Prompt("1", "?", "4"), Prompt("2", "?", "4", solution="so 4")])
    with pytest.raises(PoiseError, match=r"style compares .* no problem has one: set task\.sol"):
        check_references(config, [Prompt("1", "?", "4")])


NESTED = {"reward_model": {"ground_truth": "4"}}


@pytest.mark.parametrize(
    ("parameter", "prompt", "has_reference"),
    [
        ("solution", Prompt("1", "?", "4"), True),
        ("solution", Prompt("1", "?", "", solution="so 4"), True),
        ("solution", Prompt("1", "?", "", columns={"solution": ""}), True),
        ("solution", Prompt("1", "?", "", columns={"solution": None}), False),
        ("solution", Prompt("1", "?", "", columns=NESTED), False),
        ("ground_truth", Prompt("1", "?", "4"), True),
        ("ground_truth", Prompt("1", "?", "", solution="so 4"), False),
        ("ground_truth", Prompt("1", "?", "", columns={"ground_truth": ""}), True),
        ("ground_truth", Prompt("1", "?", "", columns=NESTED), True),
        ("ground_truth", Prompt("1", "?", "", columns={"reward_model": {"style": "x"}}), False),
    ],
)
def test_a_function_that_would_get_an_empty_reference_for_all_problems_is_refused(
    tmp_path: Path, parameter: str, prompt: Prompt, has_reference: bool
) -> None:
    (tmp_path / "mine.py").write_text(f"def score(completions, {parameter}): return [0.0]")
    config = VerifyConfig(name=f"{tmp_path}/mine.py:score")
    if has_reference:
        check_references(config, [prompt])
    else:
        with pytest.raises(PoiseError, match=f"needs '{parameter}', and no problem has a column"):
            check_references(config, [prompt])
