"""A step whose schedule is known -> its line of plans.jsonl and its table of tokens/.

The plan says what really happened: which rollouts shared an optimizer step, and on which
data-parallel rank and in which micro-batch each was computed. Rollouts that were sampled but not
trained are in rollouts/ only.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from counterpoise.batch.describe import describe_plan, plan_metrics, plan_record
from counterpoise.hosts.importing.formats import ImportedRollout, ImportedStep
from counterpoise.store.folder import SCHEMA
from counterpoise.store.schema import PLAN_METRICS
from counterpoise.types import BatchPlan, Rollout, Row
from counterpoise.variants import ADVANTAGES

NO_NUMBERS = np.empty(0, np.float32)
# Of a line of metrics.jsonl: what the plan and the tokens give.
METRICS_OF_PLANS = (
    "steps", "batch_rows", "rows_without_signal", *PLAN_METRICS, "old_logprob",
    "sampler_mismatch", "sampler_mismatch_max", "entropy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScheduleRecords:
    """What the files of a run folder hold of one step besides its rollouts."""

    plan: dict[str, Any] | None
    tokens: pa.Table | None
    metrics: dict[str, Any]  # numbers that the plan and the tokens give
    has_computed_advantages: bool = False  # some were missing, so computed from the rewards


def record_schedule(step: ImportedStep, source_title: str) -> ScheduleRecords:
    """The plan and the tokens of a step; none where the source does not tell its schedule.

    In the plan the source's title stands for the composer: the trainer composed these batches.
    """
    if step.plan_record is not None:
        metrics = {**step.plan_metrics, "steps": len(step.plan_record.get("steps", ()))}
        return ScheduleRecords(step.plan_record, step.token_table, metrics)
    if step.schedule is None or not any(step.schedule.optimizer_steps):
        return ScheduleRecords(None, None, {})
    schedule = step.schedule
    rollout_indices = sorted(
        rollout_index for members in schedule.optimizer_steps for rollout_index in members
    )
    row_of_rollout = {rollout_index: row for row, rollout_index in enumerate(rollout_indices)}
    indices_in_groups = _indices_in_groups(step)
    grpo_advantages = _compute_advantages(step)
    rows = []
    for rollout_index in rollout_indices:
        rollout = step.rollouts[rollout_index]
        advantage = rollout.advantage
        if advantage is None or not math.isfinite(advantage):
            advantage = grpo_advantages[rollout_index]
        rows.append(
            Row(
                rollout.group,
                advantage,
                max(1, rollout.length),
                index=indices_in_groups[rollout_index],
                born=step.number,
                rollout=_tokens_only(rollout),
            )
        )
    plan = BatchPlan(
        source_title,
        tuple(
            tuple(row_of_rollout[rollout_index] for rollout_index in members)
            for members in schedule.optimizer_steps
        ),
    )
    description = describe_plan(rows, plan)
    record = plan_record(step.number, rows, plan, description)
    for name, number_of_rollout in (
        ("rank", schedule.rank_of_rollout),
        ("micro_batch", schedule.micro_batch_of_rollout),
    ):
        if number_of_rollout:
            record[name] = [number_of_rollout[rollout_index] for rollout_index in rollout_indices]
    columns = _token_columns(step, record, rollout_indices)
    return ScheduleRecords(
        {"schema": SCHEMA, **record},
        pa.table(columns) if columns else None,
        {
            "steps": len(plan.steps),
            "batch_rows": len(rows),
            "rows_without_signal": description["rows_without_signal"],
            **plan_metrics(description),
            **_token_metrics(columns),
        },
        not all(has_advantage(step.rollouts[rollout_index]) for rollout_index in rollout_indices),
    )


def has_advantage(rollout: ImportedRollout) -> bool:
    """Whether the source wrote a finite advantage: reports cannot show any other."""
    return rollout.advantage is not None and math.isfinite(rollout.advantage)


def _indices_in_groups(step: ImportedStep) -> list[int]:
    """The number of every rollout within its group, counted in the order of rollouts/."""
    members: Counter[str] = Counter()
    indices = []
    for rollout in step.rollouts:
        indices.append(members[rollout.group])
        members[rollout.group] += 1
    return indices


def _compute_advantages(step: ImportedStep) -> list[float]:
    """GRPO's advantages, for rollouts of which the source wrote the reward alone."""
    indices_of_group: dict[str, list[int]] = {}
    for rollout_index, rollout in enumerate(step.rollouts):
        indices_of_group.setdefault(rollout.group, []).append(rollout_index)
    compute_advantages = ADVANTAGES.load("grpo")
    advantages = [0.0] * len(step.rollouts)
    for rollout_indices in indices_of_group.values():
        rewards_G = np.array(
            [step.rollouts[rollout_index].reward for rollout_index in rollout_indices]
        )
        for rollout_index, advantage in zip(
            rollout_indices, compute_advantages(rewards_G), strict=True
        ):
            advantages[rollout_index] = float(advantage)
    return advantages


def _tokens_only(rollout: ImportedRollout) -> Rollout | None:
    if not rollout.response_tokens:
        return None
    return Rollout(
        prompt_id=rollout.prompt_id,
        prompt="",
        answer="",
        response="",
        reward=rollout.reward,
        prompt_tokens=np.empty(0, np.int32),
        response_tokens=np.array(rollout.response_tokens, dtype=np.int32),
        sampled_logprobs=NO_NUMBERS,
    )


def _token_columns(
    step: ImportedStep, record: dict[str, Any], rollout_indices: list[int]
) -> dict[str, np.ndarray]:
    """The columns of tokens/ for rows whose log-probabilities the trainer wrote; {} for none."""
    step_of_row = {row: number for number, rows in enumerate(record["steps"]) for row in rows}
    columns: dict[str, list[np.ndarray]] = {}
    for row, rollout_index in enumerate(rollout_indices):
        rollout = step.rollouts[rollout_index]
        tokens, logprobs = rollout.response_tokens, rollout.trainer_logprobs
        if not tokens or logprobs is None:
            continue
        length = len(tokens)
        constant = np.full(length, record["advantage"][row])
        # old_logprobs are the sampler's, or the trainer's where the sampler's were not written.
        old_logprobs = logprobs if rollout.sampled_logprobs is None else rollout.sampled_logprobs
        unknown = [np.nan] * length
        row_columns = {
            "step": np.full(length, step_of_row[row], np.int32),
            "row": np.full(length, row, np.int32),
            "position": np.arange(length, dtype=np.int32),
            "token": np.array(tokens, np.int32),
            "advantage": np.array(
                constant if rollout.advantages_T is None else rollout.advantages_T, np.float32
            ),
            "old_logprob": np.array(old_logprobs, np.float32),  # verl's rollout_log_probs
            "logprob": np.array(logprobs, np.float32),  # verl's old_log_probs
            "entropy": np.array(rollout.entropies or unknown, np.float32),
        }
        for name, values in row_columns.items():
            columns.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in columns.items()}


def _token_metrics(columns: dict[str, np.ndarray]) -> dict[str, float]:
    """Means over the trained tokens, for columns that the source provides; the largest mismatch."""
    if not columns:
        return {}
    difference = np.abs(columns["old_logprob"] - columns["logprob"]).astype(float)
    metrics = {"old_logprob": float(columns["old_logprob"].mean())}
    if difference.any():  # all zeros: both columns are the trainer's
        metrics |= {
            "sampler_mismatch": float(difference.mean()),
            "sampler_mismatch_max": float(difference.max()),
        }
    if np.isfinite(columns["entropy"]).all():
        metrics["entropy"] = float(columns["entropy"].mean())
    return metrics
