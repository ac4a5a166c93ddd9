"""The numbers of one iteration: its line of metrics.jsonl, of plans.jsonl, and its token trace.

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
from counterpoise.types import BatchPlan, Group, Rollout, Row, StepResult, TokenTrace
from counterpoise.update.importance import sampler_mismatch
from counterpoise.verify.scores import Scores


class Clock:
    """Seconds spent in each stage of an iteration."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now, name = time.perf_counter(), f"{stage}_seconds"
        self.laps[name] = self.laps.get(name, 0.0) + now - self.last  # a stage may come again
        self.last = now

    def split(self, stage: str, part: str, seconds: float) -> None:
        """Take `part` out of the time of `stage`, inside which it ran."""
        self.laps[f"{stage}_seconds"] -= seconds
        self.laps[f"{part}_seconds"] = seconds

    def total(self) -> float:
        return time.perf_counter() - self.start


@dataclass(frozen=True, slots=True, eq=False)
class Iteration:
    """What one iteration made, stage by stage."""

    number: int
    groups: Sequence[Group]  # as sampled and verified, those that dynamic sampling dropped too
    scores: Scores
    credited: Sequence[Sequence[Row]]  # rows of every group
    batch: Sequence[Row]  # rows of the update; empty while reward balance waits
    plan: BatchPlan | None
    description: PlanDescription | None
    results: Sequence[StepResult]
    views: Sequence[StepMeasurement]  # of the monitor, one for each step that it looked at
    rounds: int = 1  # of sampling
    drops: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)  # by reason


def record(made: Iteration, buffer: RewardBalancedBuffer, clock: Clock) -> dict[str, Any]:
    """One line of metrics.jsonl. Values are None where nothing was updated."""
    rollouts = [rollout for group in made.groups for rollout in group.rollouts]
    answers = [rollout for rollout in rollouts if not rollout.anchor]
    tokens = sum(len(r.response_tokens) for r in rollouts)
    rewards_PG = [group.rewards_G for group in made.groups]
    counts = asdict(buffer.counts)
    return {
        "iteration": made.number,
        "success": float(np.mean([r.reward > 0 for r in answers])),
        "reward": float(np.mean([r.reward for r in answers])),
        **_of_rewards(answers, [rollout for rollout in rollouts if rollout.anchor]),
        "mixed_groups": float(np.mean([np.ptp(rewards) > 0 for rewards in rewards_PG])),
        "sampling_rounds": made.rounds,
        "rollouts": len(rollouts),
        "rollout_tokens": tokens,
        "response_length": tokens / len(rollouts),
        **_of_turns(rollouts),
        "truncated_share": float(np.mean([not r.finished for r in rollouts])),
        "verifier_timeouts": made.scores.timeouts,
        "verifier_crashes": made.scores.crashes,
        "buffer_positive": buffer.waiting_positive,
        "buffer_negative": buffer.waiting_negative,
        "dropped_no_spread": len(made.drops.get("no_spread", ())),
        "dropped_surplus": counts["dropped_surplus"],
        "dropped_aged": counts["dropped_aged"],
        "batch_rows": len(made.batch),
        "rows_without_signal": sum(not row.sign for rows in made.credited for row in rows),
        **_of_plan(made.description),
        **_of_update(made.results),
        **sampler_mismatch(made.batch, made.results, made.number),
        **monitor_metrics(made.views),
        **clock.laps,
        "iteration_seconds": clock.total(),
        "tokens_per_second": tokens / clock.laps["sample_seconds"],
    }


def _of_rewards(answers: Sequence[Rollout], anchors: Sequence[Rollout]) -> dict[str, float]:
    """Means of the further rewards, and the success of anchors, in runs that have them."""
    found = {
        f"reward_{name}": float(np.mean([r.further[name] for r in answers]))
        for name in answers[0].further
    }
    if anchors:
        found["anchor_success"] = float(np.mean([r.reward > 0 for r in anchors]))
    return found


def _of_turns(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """In runs with an environment: how long episodes are, and how many of those that took their
    k-th turn were right at it."""
    episodes = [rollout.turns for rollout in rollouts if rollout.turns]
    if not episodes:
        return {}
    taken = [[t[k] for t in episodes if len(t) > k] for k in range(max(map(len, episodes)))]
    return {
        "turns": float(np.mean([len(turns) for turns in episodes])),
        "turn_success": [float(np.mean([not turn.feedback for turn in at])) for at in taken],
        "told_tokens": sum(rollout.num_told for rollout in rollouts),
    }


def drop_record(made: Iteration) -> dict[str, Any]:
    """A line of drops.jsonl: {"no_spread": {"7:word_problems/train/12": [0, 1, 2, 3]}, ...}."""
    found: dict[str, Any] = {"iteration": made.number}
    for reason, names in made.drops.items():
        groups: dict[str, list[int]] = found.setdefault(reason, {})
        for group, index in names:
            groups.setdefault(group, []).append(index)
    return found


def without_a_step(records: Sequence[Mapping[str, Any]]) -> str:
    """Why a run took no optimizer step, from its lines of metrics.jsonl; "": it took one."""
    if any(record["steps"] for record in records):
        return ""
    success = {record["success"] for record in records}
    if any(record["positive_share"] is not None for record in records):
        why = "no loss or gradient was finite: lower update.lr"
    elif any(r["buffer_positive"] or r["buffer_negative"] or r["dropped_aged"] for r in records):
        why = "no batch was balanced: lower balance.target or balance.tau, or sample more"
    elif success == {0.0} and not any(record["reward"] for record in records):
        why = (
            "every reward was 0: check the reward, take easier problems, or warm up (poise warmup)"
        )
    elif success == {1.0}:
        why = "every response was right: check the reward, or take harder problems"
    else:
        why = "the rewards of a group were always equal: check the reward, or take other problems"
    return f"no optimizer step was taken: {why}"


def _of_plan(description: PlanDescription | None) -> dict[str, Any]:
    return {name: description[name] if description else None for name in PLAN_METRICS}  # type: ignore[literal-required]


def _of_update(results: Sequence[StepResult]) -> dict[str, Any]:
    taken = [r for r in results if not r.skipped]
    if not taken:
        return {"steps": 0, "skipped_steps": len(results), **dict.fromkeys(UPDATE_METRICS)}
    entropies = np.concatenate([e for r in taken for e in r.entropies])
    logprobs = np.concatenate([x for r in taken for x in r.logprobs])
    old = np.concatenate([x for r in taken for x in r.old_logprobs])
    return {
        "steps": len(taken),
        "skipped_steps": len(results) - len(taken),
        "loss": float(np.mean([r.loss for r in taken])),
        "grad_norm": float(np.mean([r.grad_norm for r in taken])),
        "clipped_share": float(np.mean([r.clipped_share for r in taken])),
        "capped_share": float(np.mean([r.capped_share for r in taken])),
        "added_loss": float(np.mean([r.added_loss for r in taken])),
        "chosen_share": float(np.mean([r.chosen_share for r in taken])),
        "entropy": float(entropies.mean()),
        "old_logprob": float(old.mean()),
        "mean_ratio": float(np.exp(logprobs - old).mean()),
    }


def plan_record(made: Iteration) -> dict[str, Any]:
    """Enough of a plan to draw it: every row's group, advantage and length, and the steps."""
    assert made.plan is not None, "an iteration without an update has no plan"
    batch = made.batch
    number: dict[str, int] = {}
    return {
        "iteration": made.number,
        "rule": made.plan.rule,
        "steps": [list(step) for step in made.plan.steps],
        "group": [number.setdefault(row.group, len(number)) for row in batch],
        "groups": list(number),
        "index": [row.index for row in batch],
        "advantage": [row.advantage for row in batch],
        "tokens": [row.num_tokens for row in batch],
        "born": [row.born for row in batch],
        "describe": made.description,
    }


TRACED = tuple(TOKEN_COLUMNS)


def token_trace(made: Iteration) -> TokenTrace:
    """Every trained token with the very numbers the loss used; `row` indexes the plan's rows.

    Where the monitor looked, also what the step did to the token and who pushed it.
    """
    results = made.results
    rows = [row for result in results for row in result.rows]
    steps = np.repeat(np.arange(len(results), dtype=np.int16), [len(r.rows) for r in results])
    lengths = [made.batch[row].num_tokens for row in rows]
    starts = np.cumsum([0, *lengths])
    values: tuple[np.ndarray, ...] = (
        np.repeat(steps, lengths),
        np.repeat(np.array(rows, dtype=np.int32), lengths),
        (np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)).astype(np.int32),
        _joined([made.batch[row].content.response_tokens for row in rows]),
        _joined([x for result in results for x in result.advantages]),
        _joined([x for result in results for x in result.old_logprobs]),
        _joined([x for result in results for x in result.logprobs]),
        _joined([x for result in results for x in result.entropies]),
        _joined([x for result in results for x in result.pulls]),
    )
    traced = dict(zip(TRACED, values, strict=True))
    start_of = dict(zip(rows, starts.tolist(), strict=False))
    seen = [rows_of[i] for view, rows_of in _viewed(made) for i in view.measured_rows]
    places = [start_of[row] + np.arange(made.batch[row].num_tokens) for row in seen]
    return TokenTrace({**traced, **token_columns(made.views, _joined(places), len(values[0]))})


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0)


def push_trace(made: Iteration) -> TokenTrace | None:
    """Who pushed the watched tokens; None where nothing was watched."""
    return push_table(made.views, [rows for _, rows in _viewed(made)])


def _viewed(made: Iteration) -> list[tuple[StepMeasurement, list[int]]]:
    """Each view, and which rows of the batch its rows are."""
    steps = made.plan.steps if made.plan else ()
    return [(view, [steps[view.step][i] for i in view.rows]) for view in made.views]
