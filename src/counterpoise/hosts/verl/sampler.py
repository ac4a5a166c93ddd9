"""RB as verl's custom sampler: sample until a batch B has min(N+(B), N-(B)) >= tau |B|.

A round is what verl submits at a step: data.train_batch_size prompts. In mode `sync` its groups are
added to the ledger when all of them are finished; if no balanced batch can be taken, another round
is sampled with the same weights. In mode `colocate_async` groups are added as they finish, and a
batch is taken as soon as one is balanced, while other prompts are still running. Waiting rollouts
stay in TransferQueue, discarded ones are removed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.batch.dropped_rollouts import DropsByReason, find_drops
from counterpoise.errors import PoiseError
from counterpoise.hosts.verl.batch_rows import ROLLOUT_FIELDS
from counterpoise.hosts.verl.checkpoint import BalanceState
from counterpoise.hosts.verl.ledger import BalanceLedger, ScoredRollout
from counterpoise.hosts.verl.row_keys import group_of_key, split_key
from counterpoise.types import Row


class SampledForUpdate(NamedTuple):
    """What was sampled for an update, and what became of it, for the run folder.

    Groups are verl's uids. `update_of_group` is the update that was being sampled for when a group
    was added to the ledger; a group that waits is trained by a later one.
    """

    buffer: RewardBalancedBuffer  # after the batch was taken
    batch_rows: Mapping[str, Row]  # of the update, by key
    update_of_group: Mapping[str, int]  # also of groups that were added for earlier updates
    sampled_rows: Mapping[str, Row]  # by key, also those that wait or were discarded
    sampled_fields: Sequence[Any]  # ROLLOUT_FIELDS of the same rows, in pieces
    drops: DropsByReason
    sampling_rounds: int


class RewardBalancedReplayBuffer(ReplayBuffer):
    """verl's replay buffer, but a batch is taken only when it is balanced.

    `sampler_kwargs` are tau, target, unit, max_age, max_refills, credit and keeps_rollouts (for the
    run folder); the trainer of this adapter sets them from `+poise.*`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = dict(self.sampler_kwargs)
        self.max_refills = int(options.pop("max_refills"))
        self.keeps_rollouts = bool(options.pop("keeps_rollouts", False))
        self.ledger = BalanceLedger(**options)
        self.rounds = 0  # how many have been sampled
        self.batch_rows: dict[str, Row] = {}  # of the latest batch, with their advantages
        # Of the latest update, until the next is sampled:
        self._update = 0
        self._now = 0  # the round (mode `sync`) or the update, from which ages are counted back
        self._refills = 0
        self._waiting_before: list[Row] = []
        self._update_of_group: dict[str, int] = {}  # of groups added for it, and of waiting ones
        self._sampled_rows: dict[str, Row] = {}
        self._sampled_fields: list[Any] = []

    def sampled_for_update(self) -> SampledForUpdate:
        """What was sampled for the latest update."""
        buffer = self.ledger.buffer
        candidates = [*self._waiting_before, *self._sampled_rows.values()]
        drops = find_drops(
            [],
            candidates,
            list(self.batch_rows.values()),
            buffer.state(),
            self._now - buffer.max_age,
        )
        return SampledForUpdate(
            buffer=buffer,
            batch_rows=self.batch_rows,
            update_of_group=self._update_of_group,
            sampled_rows=self._sampled_rows,
            sampled_fields=self._sampled_fields,
            drops=drops,
            sampling_rounds=1 + self._refills,
        )

    def state(self) -> BalanceState:
        """What a checkpoint needs, between two updates."""
        waiting_rows = self.ledger.waiting_rows
        return BalanceState(
            self.trainer_mode,
            counts=self.ledger.buffer.counts,
            rounds=self.rounds,
            waiting_rows=waiting_rows,
            update_of_group={
                row.group: self._update_of_group[row.group] for row in waiting_rows.values()
            },
        )

    def restore(self, state: BalanceState) -> None:
        """Go on from the state of a checkpoint."""
        self.ledger.restore(state.waiting_rows, state.counts)
        self.rounds = state.rounds
        self._update_of_group = dict(state.update_of_group)

    def _begin_update(self, number: int) -> None:
        self._update, self._waiting_before = number, self.ledger.buffer.state()
        waiting_groups = {row.group for row in self._waiting_before}
        self._update_of_group = {
            group: update
            for group, update in self._update_of_group.items()
            if group in waiting_groups
        }
        self._sampled_rows, self._sampled_fields = {}, []

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, float]]:
        if partition_id == "val":
            batch: tuple[KVBatchMeta, dict[str, float]] = super().sample(
                global_steps, partition_id, batch_size
            )
            return batch
        self._begin_update(global_steps)
        for refills in range(self.max_refills + 1):
            if refills:
                self.refill_fn(batch_size)
            self._finish_round(partition_id)
            if rows := self._take_batch(partition_id, self.rounds):
                return self._emit_batch(partition_id, rows, refills)
        raise self._shortage()

    def _take_batch(self, partition_id: str, now: int) -> dict[str, Row] | None:
        """The rows of a balanced batch, if there is one; discarded rollouts are removed."""
        self._now = now
        rows = self.ledger.take_batch(now)
        if discarded := self.ledger.pop_discarded():
            tq.kv_clear(keys=discarded, partition_id=partition_id)
        return rows

    def _emit_batch(
        self, partition_id: str, rows: dict[str, Row], refills: int
    ) -> tuple[KVBatchMeta, dict[str, float]]:
        self.batch_rows, self._refills = rows, refills
        tags = [self.partitions[partition_id][key] for key in rows]
        metrics = {**self.ledger.batch_metrics(rows), "refills": refills}
        meta = KVBatchMeta(partition_id=partition_id, keys=list(rows), tags=tags)
        return meta, {f"poise/{name}": float(value) for name, value in metrics.items()}

    def _shortage(self) -> PoiseError:
        return PoiseError(
            self.ledger.buffer.shortage_message(
                f"{self.max_refills + 1} rounds",
                "lower +poise.tau, raise +poise.max_refills and +poise.max_age",
            )
        )

    def waiting_batch(self, partition_id: str) -> KVBatchMeta:
        """The rollouts that wait for a later batch."""
        keys = list(self.ledger.waiting_rows)
        tags = [self.partitions[partition_id][key] for key in keys]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags)

    def _finish_round(self, partition_id: str) -> None:
        """Wait until every submitted prompt is finished, then add the new groups to the ledger."""
        last_debug_time = time.time()
        while True:
            self._sync_metadata_from_transfer_queue()
            if not self._prompts_in_flight(partition_id):
                break
            last_debug_time = self._wait_for_next_poll(partition_id, last_debug_time)
        self.rounds += 1
        self._add_groups(partition_id, self._finished_uids(partition_id), self.rounds)

    def _prompts_in_flight(self, partition_id: str) -> int:
        return len(self.pending_keys[partition_id]) + len(self.running_keys[partition_id])

    def _finished_uids(self, partition_id: str) -> set[str]:
        """Prompts whose rollouts are finished, or failed, and not yet in the ledger."""
        return self.finished_keys[partition_id] | self.failure_keys[partition_id]

    def _add_groups(self, partition_id: str, uids: set[str], born: int) -> None:
        """Add finished groups to the ledger; the entries of their prompts are removed."""
        if not uids:
            return
        tq.kv_clear(keys=sorted(uids), partition_id=partition_id)
        keys = [key for key in self.partitions[partition_id] if group_of_key(key) in uids]
        # Rollouts arrive as they finish; the buffer must see them in a reproducible order.
        keys.sort(key=split_key)
        if not keys:  # every prompt failed
            return
        fields = list(ROLLOUT_FIELDS) if self.keeps_rollouts else ["rm_scores"]
        data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=fields)
        groups: dict[str, list[ScoredRollout]] = {}
        for key, scores_T in zip(keys, data["rm_scores"], strict=True):
            tag = self.partitions[partition_id][key]
            rollout = ScoredRollout(key, float(scores_T.sum()), int(tag["response_len"]))
            groups.setdefault(group_of_key(key), []).append(rollout)
        rows_by_key = self.ledger.add_groups(groups, born)
        self._update_of_group.update(dict.fromkeys(groups, self._update))
        if self.keeps_rollouts:
            self._sampled_rows.update(rows_by_key)
            self._sampled_fields.append(data)


class AsyncRewardBalancedReplayBuffer(RewardBalancedReplayBuffer):
    """The same for verl's mode `colocate_async`, which interrupts prompts that are still running.

    Ages count updates from the one at which verl submitted a prompt: `max_age` takes the place of
    verl's `max_off_policy_threshold`. verl submits one round at every update, and a balanced batch
    uses up more groups than that, because only rows with signal count. The missing rounds are
    submitted here, so that as many prompts are running or waiting at every update as verl's warmup
    provided for the first.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prompts_at_start = 0  # running or waiting, before the first update

    def state(self) -> BalanceState:
        return replace(super().state(), prompts_at_start=self._prompts_at_start)

    def restore(self, state: BalanceState) -> None:
        super().restore(state)
        self._prompts_at_start = state.prompts_at_start

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, float]]:
        if partition_id == "val":
            return super().sample(global_steps, partition_id, batch_size)
        self._begin_update(global_steps)
        rounds_submitted = self._replace_prompts(partition_id, batch_size)
        refills, last_debug_time = 0, time.time()
        while True:
            self._sync_metadata_from_transfer_queue()
            is_generating = self._prompts_in_flight(partition_id) > 0
            self._add_finished(partition_id)
            if rows := self._take_batch(partition_id, global_steps):
                return self._emit_batch(partition_id, rows, rounds_submitted + refills)
            if is_generating:
                last_debug_time = self._wait_for_next_poll(partition_id, last_debug_time)
                continue
            if refills == self.max_refills:
                raise self._shortage()
            self.refill_fn(batch_size)
            refills += 1

    def _replace_prompts(self, partition_id: str, batch_size: int) -> int:
        """Submit the rounds that earlier batches used up beyond verl's own; returns how many."""
        self._sync_metadata_from_transfer_queue()
        prompts = self._prompts_in_flight(partition_id) + len(self._finished_uids(partition_id))
        prompts += len({group_of_key(key) for key in self.ledger.waiting_rows})
        self._prompts_at_start = self._prompts_at_start or prompts
        rounds = max(0, self._prompts_at_start - prompts) // batch_size
        for _ in range(rounds):
            self.refill_fn(batch_size)
        return rounds

    def _add_finished(self, partition_id: str) -> None:
        """Add the groups that finished since the last poll, the oldest prompts first."""
        uids = self._finished_uids(partition_id)
        born = self.prompt_global_steps[partition_id]
        for step in sorted({born[uid] for uid in uids}):
            self._add_groups(partition_id, {uid for uid in uids if born[uid] == step}, step)
