"""credit -> balance -> compose for one generation, as data: no tensor, no model, no process.

    Planner.add    rewards and lengths of a generation become rows with advantages
    Planner.take   a Decision: which rows are trained now, and in which optimizer step; or None,
                   while no balanced batch can be taken (RB): generate more

One process decides; a Decision is what the others are told.
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
from counterpoise.hosts.trl.config import OWN_CREDIT, PoiseConfig
from counterpoise.hosts.trl.samples import Sample
from counterpoise.types import BatchPlan, Floats, Group, Rollout, Row

Key = tuple[str, int]  # group, place in it
COUNTS = ("added", "emitted", "dropped_surplus", "dropped_aged", "without_signal")


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What is trained next. Rows carry no tokens: every process has the samples by their keys.

    Example:
        Decision(rows=(r0, ..., r31), plan=BatchPlan("grouped", ...), waiting=frozenset(),
                 numbers={"split_groups": 0.0, "waiting": 0.0, ...})
    """

    rows: tuple[Row, ...]
    plan: BatchPlan
    waiting: frozenset[Key]  # still in the buffer; the samples of all other rows can go
    numbers: dict[str, float]  # for the logs


class Planner:
    """The run's credit, buffer and composer."""

    def __init__(self, options: PoiseConfig) -> None:
        self.options = options
        self.buffer: RewardBalancedBuffer | None = None
        if options.tau:
            self.take_up((), None)
        self.credited: list[list[Row]] = []  # the latest generation's groups

    def take_up(self, rows: Iterable[Row], counts: BufferCounts | None) -> None:
        """The buffer of a run that is resumed."""
        options = self.options
        self.buffer = RewardBalancedBuffer(
            tau=options.tau,
            target=options.balance_target or options.generation_batch_size,
            unit=options.balance_unit,
            max_age=options.max_age,
            rows=rows,
            counts=counts,
        )

    def add(
        self,
        samples: Sequence[Sample],
        rewards_R: Sequence[float],
        now: int,
        reader: PolicyReader | None = None,
    ) -> None:
        """The rollouts of generation `now`, group after group; a reward of NaN is none. `reader`
        is who reads them for token weights."""
        self.credited = credit(samples, rewards_R, now, self.options, reader)
        if self.buffer is not None:
            self.buffer.add(self.credited)

    def take(self, now: int, seed: int) -> Decision | None:
        rows, numbers = self._batch(now)
        if not rows:
            return None
        plan = compose(self.options.composer, rows, self.options.optimizer_steps, seed)
        bare = tuple(replace(row, rollout=None) for row in rows)
        told: Any = describe_plan(bare, plan)
        scalar = {k: float(v) for k, v in told.items() if isinstance(v, int | float)}
        waiting = self.buffer.state() if self.buffer else []
        keys = frozenset((row.group, row.index) for row in waiting)
        return Decision(bare, plan, keys, scalar | numbers)

    def _batch(self, now: int) -> tuple[Sequence[Row], dict[str, float]]:
        if self.buffer is None:
            return [row for group in self.credited for row in group], {}
        batch = self.buffer.take(now)
        if batch is None:
            return (), {}
        counts = {f"rollouts_{name}": getattr(self.buffer.counts, name) for name in COUNTS}
        rarer = min(batch.n_positive, batch.n_negative) / len(batch.rows)
        return batch.rows, {**counts, "rollouts_waiting": len(self.buffer), "rarer_sign": rarer}


def credit(
    samples: Sequence[Sample],
    rewards_R: Sequence[float],
    now: int,
    options: PoiseConfig,
    reader: PolicyReader | None = None,
) -> list[list[Row]]:
    """Rows of every group. A rollout that no reward function judged has no advantage, and is not
    part of its group's mean."""
    G = options.num_generations
    parts = [range(g * G, (g + 1) * G) for g in range(len(samples) // G)]
    rows = [
        [Row(f"{now}:{g}", 0.0, samples[i].num_tokens, index=k, born=now) for k, i in enumerate(p)]
        for g, p in enumerate(parts)
    ]
    if options.credit == OWN_CREDIT:
        return [
            [replace(row, advantage=samples[i].trl_advantage) for row, i in zip(*of, strict=True)]
            for of in zip(rows, parts, strict=True)
        ]
    if options.credit_weights != UNIFORM and any("tool_mask" in s.extra for s in samples):
        raise PoiseError("credit_weights weigh a model's own words, not a tool's: use 'uniform'")
    judged = [[i for i in part if not math.isnan(rewards_R[i])] for part in parts]
    groups = [
        Group(f"{now}:{g}", now, tuple(rollout(samples[i], rewards_R[i]) for i in seen))
        for g, seen in enumerate(judged)
        if seen
    ]
    made = assign(groups, options.credit, options.credit_weights, options.credit_settings, reader)
    places = [i for seen in judged for i in seen]
    for i, row in zip(places, (row for group in made for row in group), strict=True):
        g, k = divmod(i, G)
        rows[g][k] = replace(rows[g][k], advantage=row.advantage, weights_T=row.weights_T)
    return rows


def rollout(sample: Sample, reward: float = math.nan) -> Rollout:
    """A sample as credit and the microscope see it; TRL has no use for its texts any more."""
    old_T = sample.extra.get("old_per_token_logps")
    T = len(sample.completion_T)
    old: Floats = np.full(T, np.nan, np.float32) if old_T is None else old_T.float().numpy()
    return Rollout(
        prompt_id="",
        prompt="",
        answer="",
        response="",
        reward=reward,
        prompt_tokens=sample.prompt_S.numpy().astype(np.int32),
        response_tokens=sample.completion_T.numpy().astype(np.int32),
        sampled_logprobs=old,
    )
