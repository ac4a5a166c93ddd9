"""Held-out success: closed forms, an interval that covers, and paired comparisons."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import FittedSize
from counterpoise.report.graded_rewards import has_graded_rewards
from counterpoise.report.panels.summary import headline_record
from counterpoise.run.decline import describe_decline
from counterpoise.run.heldout import (
    HeldoutSuccess,
    evaluate_policy,
    summarize_rewards,
    with_same_quantity,
)
from counterpoise.sample.collect import SamplerBinding
from counterpoise.sample.native import sample
from counterpoise.statistics.prompt_intervals import IntervalEstimate, share_estimate
from counterpoise.types import Prompt
from counterpoise.verify.scores import Scores


def test_closed_form() -> None:
    """The mean over problems of each one's mean; the interval is over problems."""
    rewards_PG = np.array([[1.0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]])
    found = summarize_rewards(rewards_PG)
    expected = share_estimate([1.0, 0.25, 0.0, 0.75])
    assert found.mean == 0.5
    assert (found.low, found.high) == (expected.low, expected.high)
    assert (found.pass_any, found.mixed) == (0.75, 0.5)
    assert (found.prompts, found.samples) == (4, 4)
    assert str(found) == f"50.0 % [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def test_edges() -> None:
    all_right = summarize_rewards(np.ones((5, 3)))
    assert (all_right.mean, all_right.high) == (1.0, 1.0)
    assert 0.3 < all_right.low < 0.5  # five problems say little, even when all are solved
    assert (all_right.pass_any, all_right.mixed) == (1.0, 0.0)
    one_problem = summarize_rewards(np.array([[1.0, 0.0]]))  # one problem says nothing about others
    assert (one_problem.mean, one_problem.low, one_problem.high) == (0.5, 0.0, 1.0)


def test_a_reward_above_0_is_a_success_whatever_its_size() -> None:
    """Graded rewards, also beyond 1: success is a share all the same."""
    graded = summarize_rewards(np.array([[7.5, 0.25], [-3.0, 0.0], [2.0, -0.5]]))
    right = summarize_rewards(np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]))
    assert (graded.mean, graded.low, graded.high) == (right.mean, right.low, right.high)
    assert (graded.pass_any, graded.mixed) == (2 / 3, 1 / 3)
    assert (graded.reward, right.reward) == (pytest.approx(6.25 / 6), 0.5)


def test_an_older_record_has_no_mean_reward() -> None:
    found = summarize_rewards(np.array([[1.0, 0.0]]))
    record = {**found.to_record(), "iteration": 3}
    assert HeldoutSuccess.from_record(record) == found
    del record["reward"]
    assert HeldoutSuccess.from_record(record) == replace(found, reward=None)


def test_a_record_without_a_count_is_damaged() -> None:
    """A flipped bit in the name of a field once ended a resumed run with a traceback."""
    record = {**asdict(summarize_rewards(np.array([[1.0, 0.0]]))), "iteration": 3}
    record["prompus"] = record.pop("prompts")
    with pytest.raises(PoiseError, match="damaged: iteration 3 lacks prompts; poise check"):
        HeldoutSuccess.from_record(record)


@pytest.mark.parametrize("samples", [3, 5])
def test_rewards_of_0_and_1_beside_graded_ones_keep_their_interval(samples: int) -> None:
    """Their mean reward is the success to the last bit, also where a reward is missing."""
    rng = np.random.default_rng(0)
    graded = summarize_rewards(rng.normal(size=(50, samples)), graded=True)
    for _ in range(20):
        rewards_PG = (rng.random((50, samples)) < 0.5).astype(float)
        rewards_PG[0, 0] = np.nan
        success = summarize_rewards(rewards_PG)
        assert success.reward == success.mean
        shown, _ = with_same_quantity(success, graded)
        assert (shown.reward_low, shown.reward_high) == (success.low, success.high)
        older = replace(success, reward=success.mean + 1e-12)
        assert older.as_graded().reward_low == success.low
        assert headline_record(older.to_record())["low"] == success.low
        assert not has_graded_rewards([{"success": success.mean, "reward": older.reward}], [])


def test_graded_rewards_of_older_records_have_no_interval() -> None:
    older = replace(summarize_rewards(np.array([[1.0, 0.0], [1.0, 1.0]])), reward=0.6)
    assert older.as_graded().headline == IntervalEstimate(0.6, -math.inf, math.inf)


def test_the_interval_of_one_graded_problem_is_not_known() -> None:
    one = summarize_rewards(np.array([[0.5, 2.0]]), graded=True)
    assert str(one) == "1.250 [not known]"
    record = json.loads(json.dumps({**one.to_record(), "iteration": 0}, allow_nan=False))
    assert (record["reward_low"], record["reward_high"]) == (None, None)
    assert HeldoutSuccess.from_record(record) == one
    stored_as_certain = {**record, "reward_low": 1.25, "reward_high": 1.25}  # by older versions
    assert HeldoutSuccess.from_record(stored_as_certain) == one
    assert has_graded_rewards([], [record])
    shown = headline_record(record)
    assert (shown["mean"], shown["low"], shown["high"]) == (1.25, None, None)
    worse = {**record, "reward": 1.0, "iteration": 9}
    assert describe_decline([record, worse], [], 1e-5) == (
        "held-out reward ended below its start, 1.250 [not known] -> 1.000 [not known]; "
        "its intervals are not known, so it may be chance"
    )


def test_samples_of_one_problem_are_not_independent() -> None:
    """Eight equal samples of a problem say no more than one."""
    solved = np.array([1.0, 0, 0, 1, 1, 0, 1, 0])[:, None]
    once, eight_times = summarize_rewards(solved), summarize_rewards(solved.repeat(8, axis=1))
    assert (once.low, once.high) == (eight_times.low, eight_times.high)


@pytest.mark.parametrize(("a", "b"), [(2.0, 2.0), (0.5, 0.5), (6.0, 4.0)])
def test_the_interval_covers_nineteen_times_in_twenty(a: float, b: float) -> None:
    """128 problems of varying difficulty, 4 samples each, 2,000 evaluations."""
    rng = np.random.default_rng(0)
    truth, covered, runs = a / (a + b), 0, 2000
    for _ in range(runs):
        difficulty_P = rng.beta(a, b, size=128)
        rewards_PG = (rng.random((128, 4)) < difficulty_P[:, None]).astype(float)
        found = summarize_rewards(rewards_PG)
        covered += found.low <= truth <= found.high
    assert 0.935 < covered / runs < 0.965


class Parity:
    """A verifier of its own: right when the sum of the response's words is even."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def score(self, responses, answers, prompts=()) -> Scores:
        self.asked += zip(responses, answers, strict=True)
        return Scores([float(sum(map(int, text.split())) % 2 == 0) for text in responses])

    def close(self) -> None: ...


def test_judging_is_repeatable_and_asks_in_order() -> None:
    policy = tiny.policy()
    prompts = [Prompt(f"p{i}", f"problem {i}", str(i)) for i in range(6)]
    config = SampleConfig(max_new_tokens=5)
    verifier = Parity()
    first = evaluate_policy(SamplerBinding(policy), prompts, 3, config, verifier, seed=1)
    asked, verifier.asked = verifier.asked, []
    again = evaluate_policy(SamplerBinding(policy), prompts, 3, config, verifier, seed=1)
    assert first == again
    assert verifier.asked == asked
    assert [answer for _, answer in asked] == [str(i) for i in range(6) for _ in range(3)]
    right_PG = np.array([sum(map(int, t.split())) % 2 == 0 for t, _ in asked]).reshape(6, 3)
    assert first == summarize_rewards(right_PG.astype(float))
    verifier.asked = []
    evaluate_policy(SamplerBinding(policy), prompts, 3, config, verifier, seed=2)
    assert verifier.asked != asked


def test_an_evaluation_samples_fewer_problems_at_once_where_memory_runs_out() -> None:
    """The responses stay the same, and so does the size that training is sampled by."""
    policy, config = tiny.policy(), SampleConfig(max_new_tokens=5)
    prompts = [Prompt(f"p{i}", f"problem {i}", str(i)) for i in range(6)]
    sizes: list[int] = []

    def sample_few(policy, prompts, seeds_PG, config):
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return sample(policy, prompts, seeds_PG, config)

    notices: list[str] = []
    of_training = FittedSize(4, notify=notices.append)
    all_at_once, in_parts = Parity(), Parity()
    expected = evaluate_policy(SamplerBinding(policy), prompts, 3, config, all_at_once, seed=1)
    sampler = SamplerBinding(policy, of_training, sample_few)
    assert evaluate_policy(sampler, prompts, 3, config, in_parts, seed=1) == expected
    assert in_parts.asked == all_at_once.asked
    assert (sizes, of_training.size) == ([6, 3, 1, 1, 1, 1, 1, 1], 4)
    assert notices == [
        "3 prompts sampled at once in this evaluation from now on: out of memory at 6",
        "1 prompt sampled at once in this evaluation from now on: out of memory at 3",
    ]


def test_a_problem_is_sampled_alike_in_any_company() -> None:
    """Paired comparisons: the first problems' samples do not depend on how many follow."""
    policy = tiny.policy()
    prompts = [Prompt(f"p{i}", f"problem {i}", str(i)) for i in range(6)]
    few, many = Parity(), Parity()
    evaluate_policy(
        SamplerBinding(policy), prompts[:2], 3, SampleConfig(max_new_tokens=5), few, seed=1
    )
    evaluate_policy(
        SamplerBinding(policy), prompts, 3, SampleConfig(max_new_tokens=5), many, seed=1
    )
    assert many.asked[:6] == few.asked
