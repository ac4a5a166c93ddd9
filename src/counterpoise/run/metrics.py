"""The records of one iteration: its lines of metrics.jsonl and plans.jsonl, its token trace.

Fields that hold times end in `_seconds` or `_per_second`; all others repeat exactly when a run is
repeated on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.batch.describe import PlanDescription
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.microscope.monitor_records import monitor_metrics, push_table, token_columns
from counterpoise.store.schema import PLAN_METRICS, TOKEN_COLUMNS, UPDATE_METRICS
from counterpoise.types import BatchPlan, Group, Rollout, Row, StepResult, TokenTrace, number_groups
from counterpoise.update.importance import sampler_mismatch
from counterpoise.verify.scores import Scores


class StageClock:
    """Seconds spent in each stage of an iteration."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        time_now, name = time.perf_counter(), f"{stage}_seconds"
        self.laps[name] = (
            self.laps.get(name, 0.0) + time_now - self.last
        )  # a stage may run more than once
        self.last = time_now

    def split(self, stage: str, substage: str, seconds: float) -> None:
        """Move `seconds` from `stage` to `substage`, which ran inside it."""
        self.laps[f"{stage}_seconds"] -= seconds
        self.laps[f"{substage}_seconds"] = seconds

    def total(self) -> float:
        return time.perf_counter() - self.start


@dataclass(frozen=True, slots=True, eq=False)
class IterationResult:
    """What each stage of one iteration produced."""

    number: int
    groups: Sequence[Group]  # as sampled and verified, including those dropped by dynamic sampling
    scores: Scores
    credited_groups: Sequence[Sequence[Row]]  # rows of every group
    batch: Sequence[Row]  # rows of the update; empty while reward balance waits for more
    plan: BatchPlan | None
    description: PlanDescription | None
    results: Sequence[StepResult]
    measurements: Sequence[StepMeasurement]  # of the monitor, one for each monitored step
    sampling_rounds: int = 1  # of sampling
    drops: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)  # by reason


def metrics_record(
    iteration: IterationResult, buffer: RewardBalancedBuffer, clock: StageClock
) -> dict[str, Any]:
    """One line of metrics.jsonl. Values are None where nothing was updated."""
    rollouts = [rollout for group in iteration.groups for rollout in group.rollouts]
    answers = [rollout for rollout in rollouts if not rollout.anchor]
    tokens = sum(len(r.response_tokens) for r in rollouts)
    rewards_PG = [group.rewards_G for group in iteration.groups]
    counts = asdict(buffer.counts)
    return {
        "iteration": iteration.number,
        "success": float(np.mean([r.reward > 0 for r in answers])),
        "reward": float(np.mean([r.reward for r in answers])),
        **_reward_metrics(answers, [rollout for rollout in rollouts if rollout.anchor]),
        "mixed_groups": float(np.mean([np.ptp(rewards) > 0 for rewards in rewards_PG])),
        "sampling_rounds": iteration.sampling_rounds,
        "rollouts": len(rollouts),
        "rollout_tokens": tokens,
        "response_length": tokens / len(rollouts),
        **_turn_metrics(rollouts),
        "truncated_share": float(np.mean([not r.finished for r in rollouts])),
        "verifier_timeouts": iteration.scores.timeouts,
        "verifier_crashes": iteration.scores.crashes,
        "buffer_positive": buffer.waiting_positive,
        "buffer_negative": buffer.waiting_negative,
        "dropped_no_spread": len(iteration.drops.get("no_spread", ())),
        "dropped_surplus": counts["dropped_surplus"],
        "dropped_aged": counts["dropped_aged"],
        "batch_rows": len(iteration.batch),
        "rows_without_signal": sum(
            not row.sign for rows in iteration.credited_groups for row in rows
        ),
        **_plan_metrics(iteration.description),
        **_update_metrics(iteration.results),
        **sampler_mismatch(iteration.batch, iteration.results, iteration.number),
        **monitor_metrics(iteration.measurements),
        **clock.laps,
        "iteration_seconds": clock.total(),
        "tokens_per_second": tokens / clock.laps["sample_seconds"],
    }


def _reward_metrics(answers: Sequence[Rollout], anchors: Sequence[Rollout]) -> dict[str, float]:
    """Means of the extra rewards and the success of anchors, in runs that have them."""
    means = {
        f"reward_{name}": float(np.mean([r.extra_rewards[name] for r in answers]))
        for name in answers[0].extra_rewards
    }
    if anchors:
        means["anchor_success"] = float(np.mean([r.reward > 0 for r in anchors]))
    return means


def _turn_metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """In runs with an environment: the mean number of turns, and the success at turn k among the
    episodes that reached it."""
    episodes = [rollout.turns for rollout in rollouts if rollout.turns]
    if not episodes:
        return {}
    turns_by_position = [
        [t[k] for t in episodes if len(t) > k] for k in range(max(map(len, episodes)))
    ]
    return {
        "turns": float(np.mean([len(turns) for turns in episodes])),
        "turn_success": [
            float(np.mean([not turn.feedback for turn in turns_at_k]))
            for turns_at_k in turns_by_position
        ],
        "told_tokens": sum(rollout.num_observation_tokens for rollout in rollouts),
    }


def drop_record(iteration: IterationResult) -> dict[str, Any]:
    """A line of drops.jsonl: {"no_spread": {"7:word_problems/train/12": [0, 1, 2, 3]}, ...}."""
    record: dict[str, Any] = {"iteration": iteration.number}
    for reason, names in iteration.drops.items():
        groups: dict[str, list[int]] = record.setdefault(reason, {})
        for group, index in names:
            groups.setdefault(group, []).append(index)
    return record


def explain_no_step(records: Sequence[Mapping[str, Any]]) -> str:
    """Why a run took no optimizer step, from its lines of metrics.jsonl; "" if it took one."""
    if any(record["steps"] for record in records):
        return ""
    success = {record["success"] for record in records}
    # A positive share is recorded only with a plan: steps were attempted and all were skipped.
    if any(record["positive_share"] is not None for record in records):
        why = "no loss or gradient was finite: lower update.lr"
    elif any(r["buffer_positive"] or r["buffer_negative"] or r["dropped_aged"] for r in records):
        why = "no batch was balanced: lower balance.target or balance.tau, or sample more"
    elif success == {0.0} and not any(record["reward"] for record in records):
        why = (
            "every reward was 0: check the reward, take easier problems, or warm up (poise warmup)"
        )
    elif success == {1.0}:
        why = "every response was correct: check the reward, or take harder problems"
    else:
        why = "the rewards of a group were always equal: check the reward, or take other problems"
    return f"no optimizer step was taken: {why}"


def _plan_metrics(description: PlanDescription | None) -> dict[str, Any]:
    return {name: description[name] if description else None for name in PLAN_METRICS}  # type: ignore[literal-required]


def _update_metrics(results: Sequence[StepResult]) -> dict[str, Any]:
    completed = [r for r in results if not r.skipped]
    if not completed:
        return {"steps": 0, "skipped_steps": len(results), **dict.fromkeys(UPDATE_METRICS)}
    entropies = np.concatenate([e for r in completed for e in r.entropies])
    logprobs = np.concatenate([x for r in completed for x in r.logprobs])
    old = np.concatenate([x for r in completed for x in r.old_logprobs])
    return {
        "steps": len(completed),
        "skipped_steps": len(results) - len(completed),
        "loss": float(np.mean([r.loss for r in completed])),
        "grad_norm": float(np.mean([r.grad_norm for r in completed])),
        "clipped_share": float(np.mean([r.clipped_share for r in completed])),
        "capped_share": float(np.mean([r.capped_share for r in completed])),
        "added_loss": float(np.mean([r.added_loss for r in completed])),
        "chosen_share": float(np.mean([r.chosen_share for r in completed])),
        "entropy": float(entropies.mean()),
        "old_logprob": float(old.mean()),
        "mean_ratio": float(np.exp(logprobs - old).mean()),
    }


def plan_record(iteration: IterationResult) -> dict[str, Any]:
    """Enough of a plan to draw it: every row's group, advantage and length, and the steps."""
    assert iteration.plan is not None, "an iteration without an update has no plan"
    batch = iteration.batch
    group_numbers, group_names = number_groups(batch)
    return {
        "iteration": iteration.number,
        "rule": iteration.plan.composer,
        "steps": [list(step) for step in iteration.plan.steps],
        "group": group_numbers,
        "groups": group_names,
        "index": [row.index for row in batch],
        "advantage": [row.advantage for row in batch],
        "tokens": [row.num_tokens for row in batch],
        "born": [row.born for row in batch],
        "describe": iteration.description,
    }


TRACE_COLUMNS = tuple(TOKEN_COLUMNS)


def token_trace(iteration: IterationResult) -> TokenTrace:
    """Every trained token with the very numbers the loss used; `row` indexes the plan's rows.

    For monitored steps it also holds what the step did to the token and which tokens pushed it.
    """
    results = iteration.results
    rows = [row for result in results for row in result.rows]
    steps = np.repeat(np.arange(len(results), dtype=np.int16), [len(r.rows) for r in results])
    lengths = [iteration.batch[row].num_tokens for row in rows]
    starts = np.cumsum([0, *lengths])
    values: tuple[np.ndarray, ...] = (
        np.repeat(steps, lengths),
        np.repeat(np.array(rows, dtype=np.int32), lengths),
        (np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)).astype(np.int32),
        _concatenate([iteration.batch[row].content.response_tokens for row in rows]),
        _concatenate([x for result in results for x in result.advantages]),
        _concatenate([x for result in results for x in result.old_logprobs]),
        _concatenate([x for result in results for x in result.logprobs]),
        _concatenate([x for result in results for x in result.entropies]),
        _concatenate([x for result in results for x in result.pulls]),
    )
    columns = dict(zip(TRACE_COLUMNS, values, strict=True))
    start_of = dict(zip(rows, starts.tolist(), strict=False))
    measured_rows = [
        rows_of[i]
        for view, rows_of in _measurements_with_rows(iteration)
        for i in view.measured_rows
    ]
    measured_positions = [
        start_of[row] + np.arange(iteration.batch[row].num_tokens) for row in measured_rows
    ]
    return TokenTrace(
        {
            **columns,
            **token_columns(
                iteration.measurements, _concatenate(measured_positions), len(values[0])
            ),
        }
    )


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0)


def push_trace(iteration: IterationResult) -> TokenTrace | None:
    """The strongest pushes on the tokens of watched groups; None if no group was watched."""
    return push_table(
        iteration.measurements, [rows for _, rows in _measurements_with_rows(iteration)]
    )


def _measurements_with_rows(iteration: IterationResult) -> list[tuple[StepMeasurement, list[int]]]:
    """Each measurement with the batch indices of its rows."""
    steps = iteration.plan.steps if iteration.plan else ()
    return [(view, [steps[view.step][i] for i in view.rows]) for view in iteration.measurements]
