"""The records of one iteration: its lines of metrics.jsonl and plans.jsonl, its token trace.

Fields that hold times end in `_seconds` or `_per_second`; all others repeat exactly when a run is
repeated on the CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from counterpoise.batch import describe
from counterpoise.batch.buffer import BufferCounts, RewardBalancedBuffer
from counterpoise.batch.describe import PlanDescription
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.microscope.monitor_records import (
    likely_table,
    monitor_metrics,
    push_table,
    token_columns,
)
from counterpoise.microscope.probe_monitor import ProbeAnswer, ProbeMeasurement
from counterpoise.microscope.probe_records import answer_set_columns, probe_metrics, probe_tables
from counterpoise.sample.dynamic_sampling import has_spread
from counterpoise.store.logs import LogRecords
from counterpoise.store.schema import (
    PROMPT_MEMORY_METRICS,
    TOKEN_COLUMNS,
    UPDATE_METRICS,
)
from counterpoise.types import BatchPlan, Group, Rollout, Row, StepResult, TokenTrace
from counterpoise.update.importance import sampler_mismatch
from counterpoise.verify.scores import Scores


class StageClock:
    """Seconds spent in each stage of an iteration."""

    def __init__(self) -> None:
        self.start_time = self.last_lap_time = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Add the seconds since the last lap to `stage`, which may run more than once."""
        current_time, field_name = time.perf_counter(), f"{stage}_seconds"
        self.laps[field_name] = self.laps.get(field_name, 0.0) + current_time - self.last_lap_time
        self.last_lap_time = current_time

    def split(self, stage: str, substage: str, seconds: float) -> None:
        """Move `seconds` from `stage` to `substage`, which ran inside it."""
        self.laps[f"{stage}_seconds"] -= seconds
        substage_field = f"{substage}_seconds"
        self.laps[substage_field] = self.laps.get(substage_field, 0.0) + seconds

    def total(self) -> float:
        return time.perf_counter() - self.start_time


@dataclass(frozen=True, slots=True, eq=False)
class ProbeResult:
    """What an iteration leaves of its probes: the answers, and what was measured on them."""

    answers: Sequence[ProbeAnswer]
    measurement: ProbeMeasurement | None  # None if no step was taken
    # The line of probes.jsonl that records newly drawn answers; None if they are not new.
    new_answers_record: dict[str, Any] | None = None


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
    # By the monitor, one for each monitored step. They also hold which tokens pushed those of
    # watched groups (the groups that `monitor.watch` selects).
    measurements: Sequence[StepMeasurement]
    sampling_rounds: int = 1  # 1 plus refills
    # Reason -> (group, index) of every dropped row.
    drops: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)
    probes: ProbeResult | None = None
    reward_kl: float | None = None  # mean per sampled token, where rewards have a KL penalty
    prompt_memory: Mapping[str, Any] = field(default_factory=dict)  # line of memory.jsonl, if any


def metrics_record(
    iteration: IterationResult, buffer: RewardBalancedBuffer | None, clock: StageClock
) -> dict[str, Any]:
    """One line of metrics.jsonl. Values are None where nothing was updated.

    `buffer` holds the rows that wait for a balanced batch; None: none ever waits.
    """
    rollouts = [rollout for group in iteration.groups for rollout in group.rollouts]
    # Anchors (`sample.anchors`) are rollouts whose prompt is a generic text instead of the problem.
    # They say little about how well the policy solves it, so success leaves them out.
    policy_rollouts = [rollout for rollout in rollouts if not rollout.anchor]
    num_tokens = sum(len(rollout.response_tokens) for rollout in rollouts)
    # Another trainer's rollouts may not say whether they were cut off.
    cuts = [not rollout.finished for rollout in rollouts if rollout.finished is not None]
    return {
        "iteration": iteration.number,
        **_reward_metrics(policy_rollouts, [rollout for rollout in rollouts if rollout.anchor]),
        **_missing_rewards(rollouts),
        **_logged_metrics(iteration.scores, policy_rollouts),
        "mixed_groups": float(np.mean([has_spread(group) for group in iteration.groups])),
        **{
            name: iteration.prompt_memory[name]
            for name in PROMPT_MEMORY_METRICS
            if iteration.prompt_memory
        },
        "sampling_rounds": iteration.sampling_rounds,
        "rollouts": len(rollouts),
        "rollout_tokens": num_tokens,
        "response_length": num_tokens / len(rollouts),
        **_turn_metrics(rollouts),
        **({"truncated_share": float(np.mean(cuts))} if cuts else {}),
        "verifier_timeouts": iteration.scores.timeouts,
        "verifier_crashes": iteration.scores.crashes,
        **_balance_metrics(iteration, buffer),
        "batch_rows": len(iteration.batch),
        "rows_without_signal": sum(
            not row.sign for rows in iteration.credited_groups for row in rows
        ),
        **describe.plan_metrics(iteration.description),
        **_update_metrics(iteration.results, iteration.reward_kl),
        **_kl_control_metrics(iteration.batch),
        **sampler_mismatch(iteration.batch, iteration.results, iteration.number),
        **monitor_metrics(iteration.measurements),
        **_probe_metrics(iteration),
        **clock.laps,
        "iteration_seconds": clock.total(),
        "tokens_per_second": num_tokens / clock.laps["sample_seconds"],
    }


def _balance_metrics(
    iteration: IterationResult, buffer: RewardBalancedBuffer | None
) -> dict[str, int]:
    """Rows that wait, and rollouts that were dropped."""
    counts, waiting = BufferCounts(), (0, 0)
    if buffer is not None:  # an empty buffer is false, and its counts matter too
        counts, waiting = buffer.counts, (buffer.waiting_positive, buffer.waiting_negative)
    return {
        "buffer_positive": waiting[0],
        "buffer_negative": waiting[1],
        "dropped_no_spread": len(iteration.drops.get("no_spread", ())),  # of this iteration
        # These two are totals since the run began.
        "dropped_surplus": counts.dropped_surplus,
        "dropped_aged": counts.dropped_aged,
    }


def _reward_metrics(
    policy_rollouts: Sequence[Rollout], anchors: Sequence[Rollout]
) -> dict[str, Any]:
    """Success and the mean reward; of extra rewards and of anchors too, in runs that have them.

    Means are over the rollouts that have the reward; without any, success and reward are 0. An
    import leaves out a further reward that does not apply to a rollout.
    """
    rewards = _present_rewards(policy_rollouts)
    means: dict[str, Any] = {
        "success": float(np.mean([reward > 0 for reward in rewards])) if rewards else 0.0,
        "reward": float(np.mean(rewards)) if rewards else 0.0,
    }
    # In the order of their first appearance.
    names = dict.fromkeys(name for rollout in policy_rollouts for name in rollout.extra_rewards)
    for reward_name in names:
        values = [rollout.extra_rewards.get(reward_name, math.nan) for rollout in policy_rollouts]
        applicable = [value for value in values if not math.isnan(value)]
        means[f"reward_{reward_name}"] = float(np.mean(applicable)) if applicable else None
    if anchors:
        anchor_rewards = _present_rewards(anchors)
        means["anchor_success"] = (
            float(np.mean([reward > 0 for reward in anchor_rewards])) if anchor_rewards else 0.0
        )
    return means


def _present_rewards(rollouts: Sequence[Rollout]) -> list[float]:
    """The rewards of the rollouts that have one; nan means that the reward function gave None."""
    return [rollout.reward for rollout in rollouts if not math.isnan(rollout.reward)]


def _missing_rewards(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """The number of rollouts without a reward, if there are any; anchors included."""
    num_unscored = len(rollouts) - len(_present_rewards(rollouts))
    return {"unscored": num_unscored} if num_unscored else {}


def _logged_metrics(scores: Scores, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """What a user's reward function adds: whether rewards are graded, and numbers it logged."""
    record: dict[str, Any] = {"graded": True} if scores.graded else {}
    values_by_name = {name: list(values) for name, values in scores.logged_metrics.items()}
    for rollout in rollouts:
        for name, value in rollout.logged.items():
            # Texts and lists stay in rollouts/; True and False are 1 and 0.
            if isinstance(value, bool | int | float | np.number) and math.isfinite(value):
                values_by_name.setdefault(name, []).append(float(value))
    return record | {
        f"logged_{name}": float(np.mean(values)) for name, values in values_by_name.items()
    }


def _turn_metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """In runs with an environment: the mean number of turns, and the success at each turn.

    The success at a turn is that of the episodes that reached it. `told_tokens` are the tokens that
    the environment wrote.
    """
    episodes = [rollout.turns for rollout in rollouts if rollout.turns]
    if not episodes:
        return {}
    turns_by_index = [
        [turns[turn_index] for turns in episodes if len(turns) > turn_index]
        for turn_index in range(max(map(len, episodes)))
    ]
    return {
        "turns": float(np.mean([len(turns) for turns in episodes])),
        "turn_success": [
            # Feedback is "" after a correct turn and only then: a failed last turn has some too.
            float(np.mean([not turn.feedback for turn in turns_at_index]))
            for turns_at_index in turns_by_index
        ],
        "told_tokens": sum(rollout.num_observation_tokens for rollout in rollouts),
    }


def drop_record(iteration: IterationResult) -> dict[str, Any]:
    """A line of drops.jsonl: {"no_spread": {"7:word_problems/train/12": [0, 1, 2, 3]}, ...}."""
    record: dict[str, Any] = {"iteration": iteration.number}
    for reason, row_names in iteration.drops.items():
        groups: dict[str, list[int]] = record.setdefault(reason, {})
        for group, index in row_names:
            groups.setdefault(group, []).append(index)
    return record


def explain_no_step(records: LogRecords) -> str:
    """Why a run took no optimizer step, from its lines of metrics.jsonl.

    "" if it took one, or if there are no lines to tell (they were lost, and the user resumed with
    --accept-missing-logs).
    """
    if not records or any(record["steps"] for record in records):
        return ""
    success_rates = {record["success"] for record in records}
    is_graded = any(record.get("graded") for record in records)
    # Release 0.3.0 did not count these steps; but where a plan has rows with signal, and so a
    # positive share, and no step was taken, they were the reason.
    if any(
        record.get("not_finite_steps", record["positive_share"] is not None) for record in records
    ):
        reason = "no loss or gradient was finite: lower update.lr"
    elif any(
        record["buffer_positive"] or record["buffer_negative"] or record["dropped_aged"]
        for record in records
    ):
        reason = "no batch was balanced: lower balance.target or balance.tau, or sample more"
    elif all(0 < record.get("unscored", 0) == record["rollouts"] for record in records):
        reason = "the reward function returned None for every response: check the columns it reads"
    elif success_rates == {0.0} and not any(record["reward"] for record in records):
        reason = (
            "every reward was 0: check the reward, take easier problems, or warm up (poise warmup)"
        )
    elif success_rates == {1.0} and not is_graded:
        reason = "every response was correct: check the reward, or take harder problems"
    else:
        reason = (
            "the rewards of a group were always equal: check the reward, or take other problems"
        )
    return f"no optimizer step was taken: {reason}"


def _update_metrics(
    results: Sequence[StepResult], reward_kl: float | None = None
) -> dict[str, Any]:
    # A skipped step changed nothing: its numbers would only dilute the means.
    completed = [result for result in results if not result.skipped]
    skips = {
        "skipped_steps": len(results) - len(completed),
        "not_finite_steps": sum(result.skipped == "not finite" for result in results),
    }
    if not completed:
        empty_metrics = {**dict.fromkeys(UPDATE_METRICS), "kl": reward_kl}
        return {"steps": 0, **skips, **empty_metrics}
    step_kls = [result.kl for result in completed if result.kl is not None]
    entropies = np.concatenate(
        [entropies_T for result in completed for entropies_T in result.entropies]
    )
    logprobs = np.concatenate(
        [logprobs_T for result in completed for logprobs_T in result.logprobs]
    )
    old_logprobs = np.concatenate(
        [logprobs_T for result in completed for logprobs_T in result.old_logprobs]
    )
    # What each of these means: UPDATE_METRICS in store/schema.py.
    return {
        "steps": len(completed),
        **skips,
        "loss": float(np.mean([result.loss for result in completed])),
        "grad_norm": float(np.mean([result.grad_norm for result in completed])),
        "clipped_share": float(np.mean([result.clipped_share for result in completed])),
        "capped_share": float(np.mean([result.capped_share for result in completed])),
        "added_loss": float(np.mean([result.added_loss for result in completed])),
        "chosen_share": float(np.mean([result.chosen_share for result in completed])),
        "entropy": float(entropies.mean()),
        "old_logprob": float(old_logprobs.mean()),
        "mean_ratio": float(np.exp(logprobs - old_logprobs).mean()),
        "kl": float(np.mean(step_kls)) if step_kls else reward_kl,
        "lr": completed[-1].learning_rate,
    }


def _kl_control_metrics(batch: Sequence[Row]) -> dict[str, float]:
    coefficients = [row.kl_coefficient for row in batch if row.kl_coefficient is not None]
    return {"kl_coefficient": float(np.mean(coefficients))} if coefficients else {}


def _probe_metrics(iteration: IterationResult) -> dict[str, Any]:
    probes = iteration.probes
    if probes is None:
        return {}
    return probe_metrics(probes.answers, probes.measurement, iteration.results)


def plan_record(iteration: IterationResult) -> dict[str, Any]:
    """A line of plans.jsonl."""
    assert iteration.plan is not None, "an iteration without an update has no plan"
    return describe.plan_record(
        iteration.number, iteration.batch, iteration.plan, iteration.description
    )


def token_trace(iteration: IterationResult) -> TokenTrace:
    """Every trained token with the very numbers the loss used; `row` is an index into the batch.

    For monitored steps it also holds what the step did to the token and which tokens pushed it.
    """
    results = iteration.results
    rows = [row for result in results for row in result.rows]
    step_of_row = np.repeat(
        np.arange(len(results), dtype=np.int16), [len(result.rows) for result in results]
    )
    lengths = [iteration.batch[row].num_tokens for row in rows]
    row_offsets = np.cumsum([0, *lengths])
    # In the order of TOKEN_COLUMNS. A token's pull is -dL/dlogp, how strongly the loss pulls at its
    # log-probability; a push is what one token's pull does to the log-probability of another.
    column_values: tuple[np.ndarray, ...] = (
        np.repeat(step_of_row, lengths),
        np.repeat(np.array(rows, dtype=np.int32), lengths),
        (np.arange(row_offsets[-1]) - np.repeat(row_offsets[:-1], lengths)).astype(np.int32),
        _concatenate([iteration.batch[row].content.response_tokens for row in rows]),
        _concatenate([values_T for result in results for values_T in result.advantages]),
        _concatenate([values_T for result in results for values_T in result.old_logprobs]),
        _concatenate([values_T for result in results for values_T in result.logprobs]),
        _concatenate([values_T for result in results for values_T in result.entropies]),
        _concatenate([values_T for result in results for values_T in result.pulls]),
    )
    columns = dict(zip(TOKEN_COLUMNS, column_values, strict=True))
    # The last offset, the length of the table, has no row.
    offset_of_row = dict(zip(rows, row_offsets[:-1].tolist(), strict=True))
    measured_batch_rows = [
        batch_rows[row_index]
        for measurement, batch_rows in _measurements_with_rows(iteration)
        for row_index in measurement.measured_rows
    ]
    measured_indices = [
        offset_of_row[row] + np.arange(iteration.batch[row].num_tokens)
        for row in measured_batch_rows
    ]
    return TokenTrace(
        {
            **columns,
            **token_columns(
                iteration.measurements, _concatenate(measured_indices), len(column_values[0])
            ),
            **_probe_columns(iteration, offset_of_row, len(column_values[0])),
        }
    )


def _probe_columns(
    iteration: IterationResult, offset_of_row: Mapping[int, int], table_size: int
) -> dict[str, np.ndarray]:
    """A column for each set of probe answers: the push of every trained token on them."""
    if iteration.probes is None or iteration.probes.measurement is None:
        return {}
    measurement = iteration.probes.measurement
    token_indices = _concatenate(
        [
            offset_of_row[row] + np.arange(iteration.batch[row].num_tokens)
            for row in _batch_rows(iteration, measurement.steps, measurement.rows)
        ]
    )
    return {**answer_set_columns(measurement, token_indices, table_size)}


def probe_traces(iteration: IterationResult) -> dict[str, TokenTrace]:
    """The tables of probes by the subfolder that each is written to; none if none was measured."""
    if iteration.probes is None or iteration.probes.measurement is None:
        return {}
    measurement = iteration.probes.measurement
    batch_rows = _batch_rows(iteration, measurement.steps, measurement.rows)
    return probe_tables(iteration.probes.answers, measurement, batch_rows)


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0)


def watched_traces(iteration: IterationResult) -> dict[str, TokenTrace]:
    """The tables of watched groups by folder, pushes/ and likely/; none if none was watched."""
    batch_rows = [rows for _, rows in _measurements_with_rows(iteration)]
    tables = {
        "pushes": push_table(iteration.measurements, batch_rows),
        "likely": likely_table(iteration.measurements, batch_rows),
    }
    return {kind: table for kind, table in tables.items() if table}


def _measurements_with_rows(iteration: IterationResult) -> list[tuple[StepMeasurement, list[int]]]:
    """Each measurement with the batch indices of its rows."""
    return [
        (
            measurement,
            _batch_rows(iteration, [measurement.step] * len(measurement.rows), measurement.rows),
        )
        for measurement in iteration.measurements
    ]


def _batch_rows(iteration: IterationResult, steps: Sequence[int], rows: Sequence[int]) -> list[int]:
    """The batch indices of measured rows, given by their step and their place in it."""
    plan_steps = iteration.plan.steps if iteration.plan else ()
    return [plan_steps[step][row_index] for step, row_index in zip(steps, rows, strict=True)]
