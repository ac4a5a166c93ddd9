"""What is overridden in verl's V1 trainers.

    _balance_batch         QB: rows -> plan -> order, filled up so that every step has its place
    _compute_old_log_prob  RB: rows that wait are scored by the weights that sampled them; monitor
    _compute_advantage     RB: the advantages it balanced by; then the plan in numbers
    _update_actor          the size of an optimizer step is the plan's; monitor

Without `+poise.*` every one of them is verl's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import (
    SYNTHETIC_PADDING_SEQ_LEN,
    upsample_batch_to_divisible_size,
)
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance
from verl.workers.utils.padding import response_from_nested

from counterpoise.batch.compose import check_plan as check_plan
from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.errors import PoiseError
from counterpoise.hosts.verl import options as asked
from counterpoise.hosts.verl import queue
from counterpoise.hosts.verl.credit import by_group
from counterpoise.hosts.verl.monitor import moved
from counterpoise.hosts.verl.row_layout import block_size, executed, lay_out
from counterpoise.seeds import seed_for
from counterpoise.types import BatchPlan, Row


class Planned:
    """In front of a trainer of verl's: class T(Planned, PPOTrainerSync)."""

    config: Any
    actor_rollout_wg: Any
    replay_buffer: Any
    global_steps: int
    tokenizer: Any
    use_reference_policy: bool

    def __init__(self, config: Any) -> None:
        self.poise = asked.check(config)
        if self.poise is not None and self.poise.tau:
            _use_sampler(config, self.poise)
        self._step_rows = 0  # of the latest plan: rows of an optimizer step, fillers included
        self._scored: set[str] = set()  # waiting rows whose old log-probabilities are known
        self._before: Any = None  # of a batch that is looked at: nested, by the weights before
        super().__init__(config)  # type: ignore[call-arg]

    @property
    def balances(self) -> bool:
        return self.poise is not None and self.poise.tau > 0

    # -- QB ------------------------------------------------------------------------------------

    def _balance_batch(
        self,
        batch: KVBatchMeta,
        metrics: dict[str, Any],
        logging_prefix: str = "global_seqlen",
        keep_minibatch: bool = False,
    ) -> KVBatchMeta:
        if self.poise is None or self.poise.composer == asked.OWN_ORDER:
            verl = self.config.actor_rollout_ref
            self._step_rows = verl.actor.ppo_mini_batch_size * verl.rollout.n
            return super()._balance_batch(batch, metrics, logging_prefix, keep_minibatch)  # type: ignore[misc]
        plan, ranks = self._plan(batch), self._ranks()
        block = block_size(plan, ranks, *self._micro_batches())
        lengths = torch.tensor(
            [*(tag["seq_len"] for tag in batch.tags), SYNTHETIC_PADDING_SEQ_LEN], dtype=torch.int64
        )
        *loads_R, filler = calculate_workload(lengths).tolist()
        order = lay_out(plan, loads_R, ranks, block, filler, self.poise.seed)
        batch = upsample_batch_to_divisible_size(batch, len(order), self.tokenizer.eos_token_id)
        lengths_R = [tag["seq_len"] for tag in batch.tags]
        share = len(order) // ranks
        parts = [order[r * share : (r + 1) * share] for r in range(ranks)]
        metrics.update(log_seqlen_unbalance(lengths_R, parts, logging_prefix))
        batch.reorder(order)
        self._step_rows = ranks * block
        return batch

    def _plan(self, batch: KVBatchMeta) -> BatchPlan:
        assert self.poise is not None
        groups = [queue.group(key) for key in batch.keys]
        lengths = [int(tag["response_len"]) for tag in batch.tags]
        advantages = [0.0] * len(groups)
        if self.poise.composer == "by_sign":  # the one rule that looks at them
            advantages = self._signs(batch, groups)
        rows = [
            Row(group, advantage, max(1, length))
            for group, advantage, length in zip(groups, advantages, lengths, strict=True)
        ]
        steps = min(asked.steps(self.config), len(set(groups)))  # fewer where prompts failed
        seed = seed_for(self.poise.seed, "compose", self.global_steps)
        return compose(self.poise.composer, rows, steps, seed)

    def _signs(self, batch: KVBatchMeta, groups: list[str]) -> list[float]:
        if self.balances:
            return [self.replay_buffer.taken[key].advantage for key in batch.keys]
        scores = queue.get(batch, "rm_scores")["rm_scores"]
        name = asked.credit(self.config)
        assert name is not None  # options.check has seen to it
        return by_group(name, [float(scores_T.sum()) for scores_T in scores], groups)

    def _ranks(self) -> int:
        """Data-parallel ranks of the actor."""
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        return max(workers._dispatch_info["actor"]) + 1

    def _micro_batches(self) -> tuple[int, list[int]]:
        """Rows of a training pass, and of the passes that only score; 1 where tokens decide."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        train = 1 if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
        score = []
        if not rollout.log_prob_use_dynamic_bsz:
            score.append(rollout.log_prob_micro_batch_size_per_gpu)
        reference = self.config.actor_rollout_ref.ref
        if self.use_reference_policy and not reference.log_prob_use_dynamic_bsz:
            score.append(reference.log_prob_micro_batch_size_per_gpu)
        return train or 1, [size for size in score if size]

    # -- RB ------------------------------------------------------------------------------------

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        known = batch.select_keys([key for key in batch.keys if key in self._scored])
        kept = queue.get(known, "old_log_probs") if len(known) else None
        batch = super()._compute_old_log_prob(batch, metrics)  # type: ignore[misc]
        if self._looks:
            self._before = queue.get(batch, "old_log_probs")["old_log_probs"]
        if not self.balances or asked.bypassed(self.config):  # the sampler's stay right
            return batch
        if kept is not None:
            queue.put(known, kept)
        waiting = self.replay_buffer.waiting(batch.partition_id)
        fresh = [key for key in waiting.keys if key not in self._scored]
        if fresh:
            self._score(waiting.select_keys(fresh))
        self._scored = set(waiting.keys)
        return batch

    def _score(self, waiting: KVBatchMeta) -> None:
        """Old log-probabilities of rows that wait, before the weights that sampled them change."""
        _, sizes = self._micro_batches()
        multiple = self._ranks() * (sizes[0] if sizes else 1)
        filled = upsample_batch_to_divisible_size(waiting, multiple, self.tokenizer.eos_token_id)
        super()._compute_old_log_prob(filled, {})  # type: ignore[misc]
        queue.clear(filled, filled.keys[len(waiting) :])

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        ours = asked.credit(self.config) is not None
        if ours and any(not key.endswith("_0") for key in batch.keys):
            raise PoiseError(
                "our credit takes one output per rollout, and this agent loop returns several: "
                "set algorithm.adv_estimator=grpo and +poise.tau=0"
            )
        batch = super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        if self.poise is not None:
            data = queue.get(batch, "advantages", "response_mask")
            if self.balances:
                data["advantages"] = self._balanced(batch, data["response_mask"])
                queue.put(batch, data.select("advantages"))
            metrics.update(self._describe(batch, data))
        return batch

    def _balanced(self, batch: KVBatchMeta, mask_RT: Any) -> torch.Tensor:
        """The advantages of RB's rows: a group that lost rows was re-centred."""
        taken = self.replay_buffer.taken
        by_row = [
            mask_T.float() * (taken[key].advantage if key in taken else 0.0)
            for key, mask_T in zip(batch.keys, mask_RT.unbind(), strict=True)
        ]
        return torch.nested.as_nested_tensor(by_row, layout=torch.jagged)

    # -- the plan, executed --------------------------------------------------------------------

    def _describe(self, batch: KVBatchMeta, data: TensorDict) -> dict[str, float]:
        """The plan in numbers, from the order and the advantages that the workers will get."""
        assert self.poise is not None
        kept = [queue.is_row(tag) for tag in batch.tags]
        ranks = self._ranks()
        plan = executed(kept, ranks, self._step_rows // ranks, self.poise.composer)
        rows = queue.rows(batch, data)
        if self.poise.composer != asked.OWN_ORDER:
            check_plan(rows, plan)
        told: Any = describe_plan(rows, plan)
        numbers = {k: float(v) for k, v in told.items() if isinstance(v, int | float)}
        numbers["optimizer_steps"] = float(len(plan.steps))
        numbers["fillers"] = float(len(kept) - len(rows))
        return {f"{asked.SECTION}/{name}": value for name, value in numbers.items()}

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.poise is None:
            return super()._update_actor(batch, metrics)  # type: ignore[misc]
        with _mini_batches(self.actor_rollout_wg, self._step_rows):
            batch = super()._update_actor(batch, metrics)  # type: ignore[misc]
        if self._looks:
            metrics.update(self._look(batch))
        return batch

    @property
    def _looks(self) -> bool:
        every = self.poise.monitor_every if self.poise is not None else 0
        return every > 0 and self.global_steps % every == 0

    def _look(self, batch: KVBatchMeta) -> dict[str, float]:
        """The batch's log-probabilities by the new weights, against those before."""
        again = KVBatchMeta(partition_id=batch.partition_id, keys=batch.keys, tags=batch.tags)
        temperature = self.config.actor_rollout_ref.rollout.temperature
        again.extra_info.update(
            calculate_entropy=False, compute_loss=False, temperature=temperature
        )
        self.actor_rollout_wg.compute_log_prob(again)
        data = queue.get(batch, "log_probs", "response_mask", "advantages")
        mask_RT = data["response_mask"]
        after = response_from_nested(data["log_probs"], mask_RT)
        columns = (self._before, after, data["advantages"])
        found = moved(*(queue.trained(column, mask_RT) for column in columns))
        return {f"{asked.SECTION}/{name}": value for name, value in found.items()}


@contextmanager
def _mini_batches(workers: Any, rows: int) -> Iterator[None]:
    """`update_actor` with steps of so many rows, whatever the config says.

    verl's loss by tokens counts those of the step; its losses by sequence keep the config's number.
    """
    plain = workers.update_actor

    def resized(batch: KVBatchMeta) -> Any:
        batch.extra_info["mini_batch_size"] = rows
        return plain(batch)

    workers.update_actor = resized
    try:
        yield
    finally:
        workers.update_actor = plain


def _use_sampler(config: Any, options: asked.Options) -> None:
    """Put our sampler where verl looks for a custom one."""
    path, name = asked.SAMPLER
    with open_dict(config):
        sampler = config.trainer.v1.sampler
        sampler.custom_sampler = OmegaConf.create({"path": path, "name": name})
        sampler.sampler_kwargs = OmegaConf.create(
            {
                "tau": options.tau,
                "target": asked.target(config),
                "unit": options.unit,
                "max_age": options.max_age,
                "max_refills": options.max_refills,
                "credit": asked.credit(config),
            }
        )
