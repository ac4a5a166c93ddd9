"""The numbers of an iteration, from rollouts and steps small enough to count by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from counterpoise import loop
from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.batch.describe import describe_plan
from counterpoise.config.load import load_config
from counterpoise.credit.assign import assign
from counterpoise.microscope.monitor_records import METRIC_NAMES
from counterpoise.run import metrics
from counterpoise.run.metrics import IterationResult
from counterpoise.store.schema import METRICS, TOKEN_COLUMNS
from counterpoise.types import BatchPlan, Group, Rollout, StepResult
from counterpoise.verify.scores import Scores


def rollout(reward: float, length: int, finished: bool = True) -> Rollout:
    tokens = np.arange(10, 10 + length, dtype=np.int32)
    old = np.full(length, -1.0, np.float32)
    return Rollout("p", "?", "2", "", reward, tokens[:1], tokens, old, finished)


GROUPS = [
    Group("1:p", 1, (rollout(1.0, 2), rollout(0.0, 4, finished=False))),
    Group("1:q", 1, (rollout(1.0, 3), rollout(1.0, 1))),
]
BATCH = [row for group in assign(GROUPS, "rloo") for row in group]
PLAN = BatchPlan("grouped", ((0, 1), (2, 3)))


def step(**changes: object) -> StepResult:
    """What a step over the first group returns: 2 and 4 tokens."""
    values = {
        "rows": (0, 1),
        "logprobs": [np.full(2, -1.0, np.float32), np.full(4, -1.0 + np.log(2), np.float32)],
        "old_logprobs": [np.full(2, -1.0, np.float32), np.full(4, -1.0, np.float32)],
        "advantages": [np.full(2, 1.0, np.float32), np.full(4, -1.0, np.float32)],
        "entropies": [np.full(2, 0.5, np.float32), np.full(4, 2.0, np.float32)],
        "pulls": [np.full(2, 0.25, np.float32), np.full(4, -0.125, np.float32)],
        "coefficients": np.array([0.25, 0.125], np.float32),
        "loss": 0.3,
        "grad_norm": 2.0,
        "clipped_share": 0.5,
        "tokens": 6,
    }
    return StepResult(**{**values, **changes})


SILENT = step(
    rows=(), logprobs=[], old_logprobs=[], advantages=[], entropies=[], pulls=[],
    coefficients=np.empty(0, np.float32), loss=0.0, grad_norm=0.0, skipped="no signal",
)  # fmt: skip


def iteration(
    results: list[StepResult], batch=BATCH, plan=PLAN, number: int = 1, groups=GROUPS
) -> IterationResult:
    description = describe_plan(batch, plan) if plan else None
    scores = Scores([1.0, 0.0, 1.0, 1.0], timeouts=2, crashes=1)
    credited = assign(GROUPS, "rloo")
    return IterationResult(
        number, groups, scores, credited, batch, plan, description, results, measurements=()
    )


def made(results: list[StepResult], batch=BATCH, plan=PLAN, groups=GROUPS) -> dict:
    clock = metrics.StageClock()
    for stage in ("sample", "verify", "score", "compose", "update"):
        clock.lap(stage)
    buffer = RewardBalancedBuffer(tau=0.5, target=8)
    whole = iteration(results, batch, plan, groups=groups)
    if batch:
        buffer.add(whole.credited_groups)
    return metrics.metrics_record(whole, buffer, clock)


def test_an_iteration_by_hand() -> None:
    found = made([step(), SILENT])
    expected = {
        "iteration": 1,
        "success": 0.75,
        "reward": 0.75,
        "mixed_groups": 0.5,
        "sampling_rounds": 1,
        "rollouts": 4,
        "rollout_tokens": 10,
        "response_length": 2.5,
        "truncated_share": 0.25,
        "verifier_timeouts": 2,
        "verifier_crashes": 1,
        "buffer_positive": 1,
        "buffer_negative": 1,
        "dropped_no_spread": 0,
        "dropped_surplus": 0,
        "dropped_aged": 0,
        "batch_rows": 4,
        "rows_without_signal": 2,
        "positive_share": 0.5,
        "split_groups": 0,
        "token_imbalance": 1.2,
        "max_abs_group_advantage_sum": 0.0,
        "shared_token_share": 1.0,
        "steps": 1,
        "skipped_steps": 1,
        "not_finite_steps": 0,
        "loss": 0.3,
        "grad_norm": 2.0,
        "clipped_share": 0.5,
        "capped_share": 0.0,
        "added_loss": 0.0,
        "chosen_share": 0.0,
        "entropy": pytest.approx((2 * 0.5 + 4 * 2.0) / 6),
        "old_logprob": -1.0,
        "mean_ratio": pytest.approx((2 * 1 + 4 * 2) / 6),
        "kl": None,
        "lr": None,
        "sampler_mismatch": pytest.approx(4 * np.log(2) / 6),
        "sampler_mismatch_max": pytest.approx(np.log(2)),
        "sampler_ratio_std": pytest.approx(np.std([1, 1, 2, 2, 2, 2])),
    }
    assert {k: v for k, v in found.items() if k in expected} == expected
    assert all(found[name] is None for name in METRIC_NAMES)  # the monitor was off
    times = set(found) - set(expected) - set(METRIC_NAMES)
    assert times == {
        "sample_seconds", "verify_seconds", "score_seconds", "compose_seconds", "update_seconds",
        "iteration_seconds", "tokens_per_second",
    }  # fmt: skip
    assert json.loads(json.dumps(found)) == found


def test_an_iteration_that_waits_has_the_same_fields() -> None:
    updated, waiting = made([step()]), made([], batch=[], plan=None)
    assert waiting.keys() == updated.keys()
    assert (waiting["steps"], waiting["skipped_steps"], waiting["batch_rows"]) == (0, 0, 0)
    for name in ("loss", "grad_norm", "entropy", "mean_ratio", "positive_share", "split_groups"):
        assert waiting[name] is None


def test_skipped_steps_do_not_count_in_means() -> None:
    bad = step(loss=float("nan"), grad_norm=float("inf"), skipped="not finite")
    found = made([bad, step(loss=0.5), step(loss=0.1, grad_norm=4.0)])
    assert (found["steps"], found["skipped_steps"], found["not_finite_steps"]) == (2, 1, 1)
    assert (found["loss"], found["grad_norm"]) == (pytest.approx(0.3), 3.0)
    assert made([bad])["loss"] is None


def test_rows_without_signal_are_those_without_advantage() -> None:
    """A float reward at its group's mean has advantage 0 and trains nothing."""
    groups = [Group("1:p", 1, (rollout(0.0, 1), rollout(0.5, 1), rollout(1.0, 1)))]
    credited = assign(groups, "grpo")
    assert [row.sign for row in credited[0]] == [-1, 0, 1]
    clock = metrics.StageClock()
    clock.lap("sample")
    buffer = RewardBalancedBuffer(tau=0.0, target=3)
    whole = IterationResult(
        1,
        groups,
        Scores([0.0, 0.5, 1.0]),
        credited,
        credited[0],
        None,
        None,
        [step()],
        measurements=(),
    )
    found = metrics.metrics_record(whole, buffer, clock)
    assert found["rows_without_signal"] == 1


def test_a_part_of_a_stage_has_its_own_time() -> None:
    clock = metrics.StageClock()
    clock.laps = {"update_seconds": 3.0}
    clock.split("update", "monitor", 1.0)
    assert clock.laps == {"update_seconds": 2.0, "monitor_seconds": 1.0}


def test_a_plans_line_can_draw_it() -> None:
    line = metrics.plan_record(iteration([step()], number=7))
    assert json.loads(json.dumps(line)) == line
    assert line["iteration"] == 7
    assert line["rule"] == "grouped"
    assert line["steps"] == [[0, 1], [2, 3]]
    assert line["group"] == [0, 0, 1, 1]
    assert line["groups"] == ["1:p", "1:q"]
    assert line["index"] == [0, 1, 0, 1]
    assert line["advantage"] == [1.0, -1.0, 0.0, 0.0]
    assert line["tokens"] == [2, 4, 3, 1]
    assert line["born"] == [1, 1, 1, 1]


def test_the_trace_has_a_line_for_every_trained_token() -> None:
    trace = metrics.token_trace(iteration([SILENT, step()])).columns
    assert trace["step"].tolist() == [1] * 6
    assert trace["row"].tolist() == [0, 0, 1, 1, 1, 1]
    assert trace["position"].tolist() == [0, 1, 0, 1, 2, 3]
    assert trace["token"].tolist() == [10, 11, 10, 11, 12, 13]
    assert trace["advantage"].tolist() == [1, 1, -1, -1, -1, -1]
    assert trace["old_logprob"].tolist() == [-1] * 6
    assert trace["logprob"] == pytest.approx([-1, -1] + [-1 + np.log(2)] * 4)
    assert trace["entropy"].tolist() == [0.5, 0.5, 2, 2, 2, 2]
    assert trace["pull"].tolist() == [0.25, 0.25] + [-0.125] * 4


def test_without_the_monitor_there_are_no_pushes() -> None:
    assert metrics.watched_traces(iteration([step()])) == {}


def test_a_trace_without_tokens_has_its_columns() -> None:
    trace = metrics.token_trace(iteration([SILENT])).columns
    assert tuple(trace) == tuple(TOKEN_COLUMNS)
    assert all(len(column) == 0 for column in trace.values())


QUIET = {
    "steps": 0, "success": 0.0, "reward": 0.0, "positive_share": None, "buffer_positive": 0,
    "buffer_negative": 0, "dropped_aged": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (
            {},
            "every reward was 0: check the reward, take easier problems, or warm up (poise warmup)",
        ),
        (
            {"success": 1.0, "reward": 1.0},
            "the rewards of a group were always equal: check the reward, or take other problems",
        ),
        (
            {"reward": -1.0},
            "the rewards of a group were always equal: check the reward, or take other problems",
        ),
        (
            {"buffer_negative": 7, "reward": 0.1, "success": 0.1},
            "no batch was balanced: lower balance.target or balance.tau, or sample more",
        ),
        (
            {"positive_share": 0.5, "reward": 0.5, "success": 0.5},
            "no loss or gradient was finite: lower update.lr",
        ),
    ],
    ids=["all 0", "all equal", "all negative", "not balanced", "not finite"],
)
def test_why_a_run_took_no_step(last: dict, said: str) -> None:
    assert metrics.explain_no_step([QUIET, QUIET | last]) == f"no optimizer step was taken: {said}"
    assert metrics.explain_no_step([QUIET | last, QUIET | {"steps": 1}]) == ""
    assert "no loss or gradient" in metrics.explain_no_step([QUIET | {"not_finite_steps": 4}])


def test_anchors_without_a_reward_are_neither_failures_nor_scored() -> None:
    """An anchor that got None: it counts as unscored, and not in the success of anchors."""
    nan = float("nan")
    anchors = [replace(rollout(reward, 2), anchor=True) for reward in (1.0, nan, nan)]
    group = Group("1:p", 1, (rollout(1.0, 2), rollout(nan, 3), *anchors))
    found = made([step()], groups=[group])
    assert (found["success"], found["anchor_success"]) == (1.0, 1.0)
    assert (found["unscored"], found["rollouts"]) == (3, 5)
    none_scored = Group("1:p", 1, (rollout(nan, 2), *anchors[1:]))
    silent = made([], batch=[], plan=None, groups=[none_scored])
    assert (silent["success"], silent["anchor_success"]) == (0.0, 0.0)
    assert metrics.explain_no_step([QUIET | silent]) == (
        "no optimizer step was taken: the reward function returned None for every response: check "
        "the columns it reads"
    )


def test_without_a_line_nothing_is_said_of_the_rewards() -> None:
    assert metrics.explain_no_step([]) == ""


def test_a_run_that_was_always_right_took_no_step() -> None:
    right = QUIET | {"success": 1.0, "reward": 1.0}
    assert metrics.explain_no_step([right, right]) == (
        "no optimizer step was taken: every response was correct: check the reward, or take harder "
        "problems"
    )


def test_the_schema_names_every_field() -> None:
    assert set(made([step()])) <= set(METRICS)


def test_credit_counts_as_scoring_and_not_as_composing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, credit = [0.0], loop.assign_credit

    def tick(seconds: float = 1.0) -> float:
        now[0] += seconds
        return now[0]

    def slow(*args: object) -> object:
        tick(1000.0)
        return credit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(metrics, "time", SimpleNamespace(perf_counter=tick))
    monkeypatch.setattr(loop, "assign_credit", slow)
    small = [
        "loop.iterations=1", "model.device='cpu'", "task.size=8", "sample.prompts=2",
        "sample.group_size=4", "sample.max_new_tokens=8", "batch.steps=1", "evaluate.prompts=0",
        "balance.tau=0",
    ]  # fmt: skip
    (record,) = loop.train(load_config("demo", small), tmp_path / "run").read("metrics")
    assert record["score_seconds"] >= 1000 > record["compose_seconds"]
    assert record["iteration_seconds"] < 1100


def test_what_another_trainers_rollouts_do_not_say_is_not_counted() -> None:
    """A further reward that one lacks does not apply to it; an unknown end is no end."""
    extras: tuple[dict[str, float], ...] = ({}, {"form": 0.5}, {"form": 0.25}, {})
    ends = (None, False, True, None)
    rollouts = tuple(
        replace(rollout(1.0, 2), extra_rewards=extra, finished=end)
        for extra, end in zip(extras, ends, strict=True)
    )
    record = made([], batch=[], plan=None, groups=[Group("1:p", 1, rollouts)])
    assert record["reward_form"] == 0.375
    assert record["truncated_share"] == 0.5
    unknown = tuple(replace(each, finished=None) for each in rollouts)
    silent = made([], batch=[], plan=None, groups=[Group("1:p", 1, unknown)])
    assert "truncated_share" not in silent
