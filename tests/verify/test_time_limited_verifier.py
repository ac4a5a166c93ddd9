"""Reward functions of the user's in a process of their own: limits, losses, and what stays."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_run import small_config

from counterpoise.config import VerifyConfig
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.types import Message, Prompt
from counterpoise.verify.make_verifier import make_plugin_verifier
from counterpoise.verify.plugin_reward import bind_verifier
from counterpoise.verify.reward_process import CallFailedError, RewardProcess, shared_process
from counterpoise.verify.scores import NO_CONTEXT, ScoringContext, TrainerState
from counterpoise.verify.time_limited_verifier import TimeLimitedVerifier
from counterpoise.verify.worker_process import stop_worker

MINE = """
import asyncio, os, time
calls = []
def each(completion, answer):
    calls.append(completion)
    if completion == "hang": time.sleep(3600)
    if completion == "die": os._exit(3)
    if completion == "once":
        if not os.path.exists(answer):
            open(answer, "w").close()
            os.kill(os.getpid(), 9)
    if completion == "raise": 1 / 0
    print("noise")
    return float(len(completion))
def lists(responses, answers):
    calls.extend(responses)
    if "hang" in responses: time.sleep(3600)
    return [float(len(calls))] * len(responses)
async def waits(completion, answer):
    await asyncio.sleep(0.01)
    return 2.0
def trl(completions, trainer_state, log_extra, log_metric, tests, **kwargs):
    log_extra("seen", [len(kwargs)] * len(completions))
    log_metric("step", trainer_state.global_step)
    return [float(test[0]) for test in tests]
def verl(data_source, solution_str, ground_truth, extra_info):
    return {"score": 1.0, "source": data_source}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "mine.py").write_text(MINE)
    yield f"{tmp_path}/mine.py"
    for limit in (1.0, 30.0):
        shared_process(limit).close()


def reward(name: str, limit: float = 30.0) -> TimeLimitedVerifier:
    verifier = make_plugin_verifier(name, VerifyConfig(reward_timeout_seconds=limit))
    assert isinstance(verifier, TimeLimitedVerifier)
    return verifier


def test_each_form_of_function_gets_what_it_gets_in_this_process(mine: str) -> None:
    prompt = Prompt(
        "a", "1 + 1", "2", columns={"tests": [0.5, None]}, messages=(Message("user", "x"),)
    )
    context = ScoringContext([[1, 2], [3]], TrainerState(7, 9), "gsm8k")
    for function in ("each", "waits", "trl", "verl"):
        name = f"{mine}:{function}"
        ours = make_plugin_verifier(name, VerifyConfig(reward_timeout_seconds=0))
        assert not isinstance(ours, TimeLimitedVerifier)
        expected = ours.score_in_context(["abc", ""], [prompt, prompt], context)
        scores = reward(name).score_in_context(["abc", ""], [prompt, prompt], context)
        assert scores.rewards == expected.rewards
        assert scores.logged == expected.logged
        assert scores.graded == expected.graded
        assert {k: list(v) for k, v in scores.logged_metrics.items()} == {
            k: list(v) for k, v in expected.logged_metrics.items()
        }


def test_state_stays_between_calls_and_is_shared_by_the_functions_of_a_file(mine: str) -> None:
    assert reward(f"{mine}:lists").score(["a", "b"], ["", ""]).rewards == [2.0, 2.0]
    reward(f"{mine}:each").score(["c"], [""])
    assert reward(f"{mine}:lists").score(["d"], [""]).rewards == [4.0]


def test_a_response_whose_call_hangs_loses_its_reward_and_no_other(mine: str) -> None:
    scores = reward(f"{mine}:each", limit=1.0).score(["a", "hang", "abc"], ["", "", ""])
    assert scores.rewards[0] == 1.0
    assert math.isnan(scores.rewards[1])
    assert scores.rewards[2] == 3.0
    assert (scores.timeouts, scores.crashes) == (1, 0)
    assert scores.logged == [{}, {"lost": "timeout"}, {}]


def test_what_a_worker_started_ends_with_it() -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '3600']).pid, flush=True)"
    worker = subprocess.Popen(
        [sys.executable, "-c", f"{script}; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert worker.stdout is not None
    status = Path("/proc", worker.stdout.readline().decode().strip(), "stat")
    assert stop_worker(worker) == -signal.SIGKILL
    # It is gone, or a zombie that nobody has waited for yet.
    deadline = time.monotonic() + 60
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_response_that_ends_its_process_twice_has_no_reward(mine: str, tmp_path: Path) -> None:
    scores = reward(f"{mine}:each").score(["die", "ab"], ["", ""])
    assert math.isnan(scores.rewards[0])
    assert scores.rewards[1:] == [2.0]
    assert (scores.timeouts, scores.crashes) == (0, 1)
    # Killed once, from outside as far as anybody can tell: nothing is lost.
    once = reward(f"{mine}:each").score(["a", "once", "b"], ["", str(tmp_path / "mark"), ""])
    assert once.rewards == [1.0, 4.0, 1.0]
    assert once.crashes == 0


class ScriptedProcess(RewardProcess):
    """Dies at the responses of the script, one for each request; then it scores by length."""

    def __init__(self, *deaths: int) -> None:
        super().__init__(limit_seconds=30.0)
        self.deaths = list(deaths)
        self.num_responses: list[int] = []  # of each request

    def exchange(self, request: str) -> dict[str, Any]:
        responses = json.loads(request)["responses"]
        self.num_responses.append(len(responses))
        if self.deaths:
            raise CallFailedError("crash", self.deaths.pop(0))
        return {"rewards": [float(len(response)) for response in responses]}


@pytest.mark.parametrize(
    ("deaths", "lost", "num_responses"),
    [
        ([5], [], [9, 9]),
        ([5, 7], [], [9, 9, 9]),
        ([5, 5], [5], [9, 9, 5, 3]),
        ([5, 7, 7], [7], [9, 9, 9, 7, 1]),
        ([5, 7, 2], [2], [9, 9, 9, 2, 6]),  # a third time: no more repeats
        ([0, 0], [0], [9, 9, 8]),
        ([5, 5, 1, 1], [1, 5], [9, 9, 5, 5, 1, 3, 3]),
    ],
)
def test_which_response_is_lost_to_a_process_that_dies(
    mine: str, deaths: list[int], lost: list[int], num_responses: list[int]
) -> None:
    name = f"{mine}:each"
    process = ScriptedProcess(*deaths)
    scores = TimeLimitedVerifier(name, bind_verifier(name)(), process).score(["abc"] * 9, [""] * 9)
    assert [i for i, reward in enumerate(scores.rewards) if math.isnan(reward)] == lost
    assert scores.crashes == len(lost)
    assert process.num_responses == num_responses


def test_responses_lost_while_earlier_ones_are_scored_again_count_too(mine: str) -> None:
    # Response 2 is lost, then 0 and 1 while they are scored again, then 3, the fourth.
    process = ScriptedProcess(2, 2, 0, 0, 0, 0, 0, 0)
    name = f"{mine}:each"
    verifier = TimeLimitedVerifier(name, bind_verifier(name)(), process)
    with pytest.raises(PoiseError, match="ended its process for 4 responses: mend it"):
        verifier.score(["abc"] * 9, [""] * 9)
    assert process.num_responses == [9, 9, 2, 2, 1, 1, 6, 6]


def test_a_process_that_dies_after_its_last_response_is_told_without_the_limit(mine: str) -> None:
    name = f"{mine}:each"
    verifier = TimeLimitedVerifier(name, bind_verifier(name)(), ScriptedProcess(2, 2))
    with pytest.raises(PoiseError, match="ended its process for 1 response: mend it; what was"):
        verifier.score(["a", "b"], ["", ""])


def test_a_call_for_all_responses_that_hangs_ends_the_run_with_one_line(mine: str) -> None:
    with pytest.raises(PoiseError, match=r"mine.py:lists did not return within .*=1 for 2 resp"):
        reward(f"{mine}:lists", limit=1.0).score(["a", "hang"], ["", ""])
    with pytest.raises(PoiseError, match=r"within .* for 4 responses"):
        reward(f"{mine}:each", limit=0.2).score(["hang"] * 9, [""] * 9)


def test_an_exception_of_the_function_is_told_as_before(mine: str) -> None:
    with pytest.raises(PoiseError, match=r"mine\.py.*division by zero"):
        reward(f"{mine}:each").score(["raise"], [""])
    assert reward(f"{mine}:each").score(["ab"], [""]).rewards == [2.0]


def test_what_cannot_be_sent_is_scored_here(mine: str) -> None:
    prompt = Prompt("a", "1 + 1", "2", columns={"tests": [object()]})
    scores = reward(f"{mine}:each").score_in_context(["abc"], [prompt], NO_CONTEXT)
    assert scores.rewards == [3.0]


def test_a_process_that_is_killed_between_calls_is_started_again(mine: str) -> None:
    verifier = reward(f"{mine}:each")
    verifier.score(["a"], [""])
    process = shared_process(30.0)._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert verifier.score(["ab"], [""]).rewards == [2.0]


def test_a_run_is_the_same_with_the_reward_here_or_there(tmp_path: Path) -> None:
    config = small_config(tmp_path, "loop.iterations=2", "monitor.every=0")
    folders = []
    for limit in (0.0, 30.0):
        limited = replace(config, verify=replace(config.verify, reward_timeout_seconds=limit))
        folders.append(train(limited, tmp_path / f"run{limit:g}"))
    first, second = (folder.path / "rollouts" / "step_00002.jsonl" for folder in folders)
    assert first.read_bytes() == second.read_bytes()
