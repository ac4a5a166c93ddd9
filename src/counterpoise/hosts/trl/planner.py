"""Plan one generation: credit -> balance -> compose, without tensors, model or processes.

    Planner.add      rewards and lengths of a generation become rows with advantages
    Planner.decide   a Decision: which rows are trained now, and in which optimizer step; None while
                     no balanced batch can be taken (RB), which means: generate more

Process 0 decides and sends its Decision to the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from counterpoise.batch.buffer import BufferCounts, RewardBalancedBuffer
from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.credit.assign import UNIFORM, assign
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl.config import TRL_CREDIT, PoiseConfig
from counterpoise.hosts.trl.padding import UnpaddedRollout
from counterpoise.hosts.turns import split_turns
from counterpoise.types import BatchPlan, Group, Rollout, Row

RolloutKey = tuple[str, int]  # group, index within the group


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What is trained next. Rows carry no tokens: every process has the rollouts by their keys.

    Example:
        Decision(rows=(r0, ..., r31), plan=BatchPlan("grouped", ...), waiting=frozenset(),
                 metrics={"split_groups": 0.0, "waiting": 0.0, ...})
    """

    rows: tuple[Row, ...]
    plan: BatchPlan
    waiting: frozenset[RolloutKey]  # still in the buffer; other rollouts can be forgotten after it
    metrics: dict[str, float]  # for the logs


class Planner:
    """A run's credit, reward-balanced buffer and composer."""

    def __init__(self, options: PoiseConfig) -> None:
        self.options = options
        self.buffer: RewardBalancedBuffer | None = None  # None: RB is off
        if options.tau:
            self.restore_buffer((), None)
        self.credited_groups: list[list[Row]] = []  # of the latest generation

    @property
    def max_age(self) -> int:
        """Generations that a rollout may wait."""
        return self.options.max_age

    def restore_buffer(self, rows: Iterable[Row], counts: BufferCounts | None) -> None:
        """Fill the buffer with the waiting rows of a resumed run."""
        options = self.options
        self.buffer = RewardBalancedBuffer(
            tau=options.tau,
            target=options.balance_target or options.generation_batch_size,
            unit=options.balance_unit,
            max_age=options.max_age,
        )
        self.buffer.restore(rows, counts)

    def add(
        self,
        samples: Sequence[UnpaddedRollout],
        rewards_R: Sequence[float],
        generation: int,
        reader: PolicyReader | None = None,
    ) -> None:
        """Add the rollouts of a generation, group after group; NaN means no reward.

        `reader` runs the model over them for token weights.
        """
        self.credited_groups = assign_credit(samples, rewards_R, generation, self.options, reader)
        if self.buffer is not None:
            self.buffer.add(self.credited_groups)

    def decide(self, generation: int, seed: int) -> Decision | None:
        """Take a batch and compose its optimizer steps; None while no batch is balanced."""
        rows, balance_metrics = self._next_batch(generation)
        if not rows:
            return None
        plan = compose(self.options.composer, rows, self.options.optimizer_steps, seed)
        # The decision is pickled to every process: token arrays would make it large.
        bare_rows = tuple(replace(row, rollout=None) for row in rows)
        description: Any = describe_plan(bare_rows, plan)
        plan_metrics = {
            name: float(value)
            for name, value in description.items()
            if isinstance(value, int | float)
        }
        waiting = self.buffer.state() if self.buffer else []
        waiting_keys = frozenset((row.group, row.index) for row in waiting)
        return Decision(bare_rows, plan, waiting_keys, plan_metrics | balance_metrics)

    def _next_batch(self, generation: int) -> tuple[Sequence[Row], dict[str, float]]:
        if self.buffer is None:
            return [row for group in self.credited_groups for row in group], {}
        batch = self.buffer.take(generation)
        if batch is None:
            return (), {}
        return batch.rows, self.buffer.log_metrics(batch.rows)


def assign_credit(
    samples: Sequence[UnpaddedRollout],
    rewards_R: Sequence[float],
    generation: int,
    options: PoiseConfig,
    reader: PolicyReader | None = None,
) -> list[list[Row]]:
    """The rows of every group with their advantages.

    A rollout that no reward function scored has advantage 0 and does not count in its group's mean.
    """
    G = options.num_generations
    members_PG = [
        range(group_index * G, (group_index + 1) * G) for group_index in range(len(samples) // G)
    ]
    if options.credit == TRL_CREDIT:
        return rows_by_trl(samples, G, generation)
    rows_PG = [
        [replace(row, advantage=0.0) for row in rows]
        for rows in rows_by_trl(samples, G, generation)
    ]
    if options.credit_weights != UNIFORM and any(
        "tool_mask" in sample.token_fields for sample in samples
    ):
        raise PoiseError("credit_weights cannot weigh rollouts with a tool's tokens: use 'uniform'")
    # Unscored rollouts keep their place in the group, so credit sees only the scored ones.
    scored_PG = [
        [sample_index for sample_index in members if not math.isnan(rewards_R[sample_index])]
        for members in members_PG
    ]
    groups = [
        Group(
            f"{generation}:{group_index}",
            generation,
            tuple(
                to_rollout(samples[sample_index], rewards_R[sample_index])
                for sample_index in members
            ),
        )
        for group_index, members in enumerate(scored_PG)
        if members
    ]
    credited_groups = assign(
        groups, options.credit, options.credit_weights, options.credit_settings, reader
    )
    scored_indices = [sample_index for members in scored_PG for sample_index in members]
    for sample_index, row in zip(
        scored_indices, (row for group in credited_groups for row in group), strict=True
    ):
        group_index, index_in_group = divmod(sample_index, G)
        # A rollout that is masked out counts in its group's mean, and has no loss itself.
        if not samples[sample_index].is_masked:
            rows_PG[group_index][index_in_group] = replace(
                rows_PG[group_index][index_in_group],
                advantage=row.advantage,
                weights_T=row.weights_T,
            )
    return rows_PG


def rows_by_trl(
    samples: Sequence[UnpaddedRollout], group_size: int, generation: int
) -> list[list[Row]]:
    """The rows of every group with TRL's own advantages; 0 where TRL masks a rollout out."""
    rows = [
        Row(
            f"{generation}:{i // group_size}",
            0.0 if sample.is_masked else sample.trl_advantage,
            sample.num_tokens,  # 0 marks a masked row in the plan
            index=i % group_size,
            born=generation,
            masked=sample.is_masked,
            trajectory=sample.trajectory,
        )
        for i, sample in enumerate(samples)
    ]
    return [rows[start : start + group_size] for start in range(0, len(rows), group_size)]


def to_rollout(sample: UnpaddedRollout, reward: float = math.nan) -> Rollout:
    """A rollout as credit and the microscope read it: tokens only, since TRL keeps no texts.

    Its `sampled_logprobs` are the trainer's old log-probabilities, NaN where TRL has none. Tokens
    of tools stand between the turns of the policy.
    """
    completion_T, is_policy_T = sample.completion_T.numpy().astype(np.int32), sample.is_policy_T
    logprobs_T = sample.old_logprobs
    if logprobs_T is None:
        logprobs_T = np.full(int(is_policy_T.sum()), np.nan, np.float32)
    return Rollout(
        prompt_id="",
        prompt="",
        answer="",
        response="",
        reward=reward,
        prompt_tokens=sample.prompt_S.numpy().astype(np.int32),
        response_tokens=completion_T[is_policy_T],
        sampled_logprobs=logprobs_T,
        turns=split_turns(completion_T, is_policy_T),
    )
