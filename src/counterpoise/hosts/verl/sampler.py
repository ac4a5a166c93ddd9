"""RB as verl's custom sampler: a batch B with min(N+(B), N-(B)) >= tau |B|, or more is sampled.

A round is what verl submits at a step: data.train_batch_size prompts. When its groups are finished
they enter the ledger; if no balanced batch can be taken, another round is asked for, from the same
weights. Rollouts that wait stay in TransferQueue, those that are given up leave it.
"""

from __future__ import annotations

import time
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from counterpoise.errors import PoiseError
from counterpoise.hosts.verl.ledger import Finished, Ledger
from counterpoise.hosts.verl.queue import group
from counterpoise.types import Row


class RewardBalancedReplayBuffer(ReplayBuffer):
    """`sampler_kwargs` are ours: tau, target, unit, max_age, max_refills, credit.

    The trainer of this adapter fills them in from `+poise.*`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = dict(self.sampler_kwargs)
        self.max_refills = int(given.pop("max_refills"))
        self.ledger = Ledger(**given)
        self.round = 0  # times that prompts were submitted and waited for
        self.taken: dict[str, Row] = {}  # the latest batch: key -> row, with its advantage

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
            taken = self.ledger.take(self.round)
            if gone := self.ledger.discard():
                tq.kv_clear(keys=gone, partition_id=partition_id)
            if taken is not None:
                self.taken = taken
                tags = [self.partitions[partition_id][key] for key in taken]
                numbers = {**self.ledger.numbers(taken), "refills": refills}
                meta = KVBatchMeta(partition_id=partition_id, keys=list(taken), tags=tags)
                return meta, {f"poise/{name}": float(value) for name, value in numbers.items()}
        raise PoiseError(
            self.ledger.buffer.shortage_message(
                f"{self.max_refills + 1} rounds",
                "lower +poise.tau, raise +poise.max_refills and +poise.max_age",
            )
        )

    def waiting(self, partition_id: str) -> KVBatchMeta:
        """The rollouts that are kept for a later batch."""
        keys = self.ledger.waiting
        tags = [self.partitions[partition_id][key] for key in keys]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags)

    def _finish_round(self, partition_id: str) -> None:
        """Wait until no prompt is under way, then enter the groups that are new."""
        since = time.time()
        while True:
            self._sync_metadata_from_transfer_queue()
            if not self.pending_keys[partition_id] and not self.running_keys[partition_id]:
                break
            since = self._wait_for_next_poll(partition_id, since)
        self.round += 1
        uids = self.finished_keys[partition_id] | self.failure_keys[partition_id]
        if not uids:
            return
        tq.kv_clear(keys=sorted(uids), partition_id=partition_id)  # the prompts' own entries
        found = [key for key in self.partitions[partition_id] if group(key) in uids]
        found.sort(key=_place)
        if not found:  # every prompt failed
            return
        data = tq.kv_batch_get(keys=found, partition_id=partition_id, select_fields=["rm_scores"])
        groups: dict[str, list[Finished]] = {}
        for key, scores_T in zip(found, data["rm_scores"], strict=True):
            tag = self.partitions[partition_id][key]
            rollout = Finished(key, float(scores_T.sum()), int(tag["response_len"]))
            groups.setdefault(group(key), []).append(rollout)
        self.ledger.enter(groups, self.round)


def _place(key: str) -> tuple[str, int, int]:
    """uid, session and output of a key: the order in which a group's rollouts were asked for."""
    uid, session, output = key.rsplit("_", 2)
    return uid, int(session), int(output)
