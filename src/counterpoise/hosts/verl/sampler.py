"""RB as verl's custom sampler: a batch B with min(N+(B), N-(B)) >= tau |B|, or more is sampled.

A round is what verl submits at a step: data.train_batch_size prompts. When its groups are finished
they are added to the ledger; if no balanced batch can be taken, another round is sampled with the
same weights. Waiting rollouts stay in TransferQueue, discarded ones are removed.
"""

from __future__ import annotations

import time
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from counterpoise.errors import PoiseError
from counterpoise.hosts.verl.ledger import BalanceLedger, ScoredRollout
from counterpoise.hosts.verl.queue import group_of_key
from counterpoise.types import Row


class RewardBalancedReplayBuffer(ReplayBuffer):
    """verl's replay buffer, but a batch is taken only when it is balanced.

    `sampler_kwargs` are tau, target, unit, max_age, max_refills and credit; the trainer of this
    adapter sets them from `+poise.*`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = dict(self.sampler_kwargs)
        self.max_refills = int(options.pop("max_refills"))
        self.ledger = BalanceLedger(**options)
        self.rounds = 0  # how many have been sampled
        self.batch_rows: dict[str, Row] = {}  # of the latest batch, with their advantages

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, float]]:
        if partition_id == "val":
            batch: tuple[KVBatchMeta, dict[str, float]] = super().sample(
                global_steps, partition_id, batch_size
            )
            return batch
        for refills in range(self.max_refills + 1):
            if refills:
                self.refill_fn(batch_size)
            self._finish_round(partition_id)
            rows = self.ledger.take_batch(self.rounds)
            if discarded := self.ledger.pop_discarded():
                tq.kv_clear(keys=discarded, partition_id=partition_id)
            if rows is not None:
                self.batch_rows = rows
                tags = [self.partitions[partition_id][key] for key in rows]
                metrics = {**self.ledger.batch_metrics(rows), "refills": refills}
                meta = KVBatchMeta(partition_id=partition_id, keys=list(rows), tags=tags)
                return meta, {f"poise/{name}": float(value) for name, value in metrics.items()}
        raise PoiseError(
            self.ledger.buffer.shortage_message(
                f"{self.max_refills + 1} rounds",
                "lower +poise.tau, raise +poise.max_refills and +poise.max_age",
            )
        )

    def waiting_batch(self, partition_id: str) -> KVBatchMeta:
        """The rollouts that wait for a later batch."""
        keys = self.ledger.waiting_keys
        tags = [self.partitions[partition_id][key] for key in keys]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags)

    def _finish_round(self, partition_id: str) -> None:
        """Wait until every submitted prompt is finished, then add the new groups to the ledger."""
        last_debug_time = time.time()
        while True:
            self._sync_metadata_from_transfer_queue()
            if not self.pending_keys[partition_id] and not self.running_keys[partition_id]:
                break
            last_debug_time = self._wait_for_next_poll(partition_id, last_debug_time)
        self.rounds += 1
        uids = self.finished_keys[partition_id] | self.failure_keys[partition_id]
        if not uids:
            return
        tq.kv_clear(keys=sorted(uids), partition_id=partition_id)  # entries of the prompts
        keys = [key for key in self.partitions[partition_id] if group_of_key(key) in uids]
        # Rollouts arrive as they finish; the buffer must see them in a reproducible order.
        keys.sort(key=_sampling_order)
        if not keys:  # every prompt failed
            return
        data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores"])
        groups: dict[str, list[ScoredRollout]] = {}
        for key, scores_T in zip(keys, data["rm_scores"], strict=True):
            tag = self.partitions[partition_id][key]
            rollout = ScoredRollout(key, float(scores_T.sum()), int(tag["response_len"]))
            groups.setdefault(group_of_key(key), []).append(rollout)
        self.ledger.add_groups(groups, self.rounds)


def _sampling_order(key: str) -> tuple[str, int, int]:
    """(uid, session, output) of a key: the order in which a group's rollouts were requested."""
    uid, session, output = key.rsplit("_", 2)
    return uid, int(session), int(output)
