"""The overridden methods of verl's V1 trainers.

    _balance_batch         QB: rows -> plan -> order, with fillers so that steps have equal sizes
    _compute_old_log_prob  RB: waiting rows are scored by the weights that sampled them; monitor;
                           hidden states for token weights
    _compute_advantage     RB: the advantages that it balanced by; the plan's metrics; token weights
    _update_actor          optimizer steps of the plan's size; trajectory weights; monitor
    _save_checkpoint       RB: with the rollouts that wait
    _load_checkpoint       RB: the same rollouts wait again

Without `+poise.*` each of them does what verl's own does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
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

from counterpoise.batch.compose import check_plan, compose
from counterpoise.batch.describe import describe_plan
from counterpoise.batch.units import rows_by_unit
from counterpoise.credit.advantages import advantages as compute_advantages
from counterpoise.errors import PoiseError
from counterpoise.hosts.recorded_folder import check_folder_free
from counterpoise.hosts.verl import options as adapter_options
from counterpoise.hosts.verl import queue, recorder
from counterpoise.hosts.verl.batch_rows import real_indices
from counterpoise.hosts.verl.checkpoint import checkpoint_to_resume, load_state, save_state
from counterpoise.hosts.verl.monitor import (
    COUPLING_METRICS,
    WATCHED_GROUPS,
    choose_coupled_rows,
    displacement_shares,
)
from counterpoise.hosts.verl.row_keys import group_of_key, trajectories_of_keys
from counterpoise.hosts.verl.row_layout import block_size, executed_plan, order_rows
from counterpoise.hosts.verl.step_coupling import (
    REQUEST_KEY,
    TAKE_COUPLINGS,
    CouplingRequest,
    StepCoupling,
)
from counterpoise.hosts.verl.token_states import KEEP_STATES_KEY
from counterpoise.hosts.verl.token_weights import weigh_batch
from counterpoise.hosts.verl.trajectory_weights import REQUEST_KEY as TRAJECTORY_KEY
from counterpoise.hosts.verl.trajectory_weights import TrajectoryRequest
from counterpoise.hosts.verl.weight_methods import reads_states
from counterpoise.microscope.monitor_records import monitor_metrics
from counterpoise.microscope.monitor_sampling import first_mixed_groups
from counterpoise.seeds import seed_for
from counterpoise.terminal import echo_message
from counterpoise.types import BatchPlan, Row
from counterpoise.variants import COMPOSERS_THAT_READ_SIGNS


class PlannedTrainer:
    """A mixin before one of verl's trainers: class T(PlannedTrainer, PPOTrainerSync)."""

    config: Any
    actor_rollout_wg: Any
    replay_buffer: Any
    global_steps: int
    local_trigger_step: int  # updates since the weights were sent to the sampler
    tokenizer: Any
    use_reference_policy: bool

    def __init__(self, config: Any) -> None:
        self.poise = adapter_options.check_config(config)
        if self.poise is not None and self.poise.tau:
            _use_sampler(config, self.poise)
        self._step_rows = 0  # rows of an optimizer step, with fillers, in the latest plan
        self._scored_keys: set[str] = set()  # of waiting rows whose old log-probabilities are known
        self._keys_with_older_scores: set[str] = set()  # of rows that older weights have scored
        self._logprobs_before: Any = None  # of a monitored batch, before its update; nested
        self._logprobs_after: Any = None  # after it; nested
        self._couplings: list[StepCoupling] = []  # of a monitored update
        self._coupling_fault = adapter_options.coupling_fault(config)
        self._weighs_by_states = self.poise is not None and reads_states(self.poise.credit_weights)
        self._recorder: recorder.UpdateRecorder | None = None
        if self.poise is not None and self.poise.run_folder:
            notes = recorder.record_notes(config, self.poise, self._coupling_fault)
            self._recorder = recorder.UpdateRecorder(Path(self.poise.run_folder), config, notes)
            if checkpoint_to_resume(config) is None:
                check_folder_free(
                    self._recorder.folder.path,
                    f"{recorder.RESUME_HINT}, which needs a checkpoint in "
                    f"{adapter_options.select(config, 'trainer.default_local_dir')}",
                )
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
        if self.poise is None or self.poise.composer == adapter_options.VERL_ORDER:
            verl_config = self.config.actor_rollout_ref
            self._step_rows = verl_config.actor.ppo_mini_batch_size * verl_config.rollout.n
            return super()._balance_batch(batch, metrics, logging_prefix, keep_minibatch)  # type: ignore[misc]
        plan, ranks = self._compose_plan(batch), self._actor_ranks()
        block = block_size(plan, ranks, *self._micro_batch_sizes())
        lengths = torch.tensor(
            [*(tag["seq_len"] for tag in batch.tags), SYNTHETIC_PADDING_SEQ_LEN], dtype=torch.int64
        )
        *loads_R, filler_load = calculate_workload(lengths).tolist()
        order = order_rows(plan, loads_R, ranks, block, filler_load, self.poise.seed)
        batch = upsample_batch_to_divisible_size(batch, len(order), self.tokenizer.eos_token_id)
        lengths_R = [tag["seq_len"] for tag in batch.tags]
        rows_per_rank = len(order) // ranks
        rows_by_rank = [
            order[rank * rows_per_rank : (rank + 1) * rows_per_rank] for rank in range(ranks)
        ]
        metrics.update(log_seqlen_unbalance(lengths_R, rows_by_rank, logging_prefix))
        batch.reorder(order)
        self._step_rows = ranks * block
        return batch

    def _compose_plan(self, batch: KVBatchMeta) -> BatchPlan:
        assert self.poise is not None
        groups = [group_of_key(key) for key in batch.keys]
        lengths = [int(tag["response_len"]) for tag in batch.tags]
        advantages = [0.0] * len(groups)
        # verl computes advantages only later; no other composer needs them.
        if self.poise.composer in COMPOSERS_THAT_READ_SIGNS:
            advantages = self._known_advantages(batch, groups)
        trajectories = trajectories_of_keys(batch.keys, batch.tags)
        rows = [
            Row(group, advantage, max(1, length), trajectory=trajectory)
            for group, advantage, length, trajectory in zip(
                groups, advantages, lengths, trajectories, strict=True
            )
        ]
        # Where prompts failed, or trajectories join groups, there may be fewer units than steps.
        steps = min(adapter_options.optimizer_steps(self.config), len(rows_by_unit(rows)))
        seed = seed_for(self.poise.seed, "compose", self.global_steps)
        return compose(self.poise.composer, rows, steps, seed)

    def _known_advantages(self, batch: KVBatchMeta, groups: list[str]) -> list[float]:
        if self.balances:
            return [self.replay_buffer.batch_rows[key].advantage for key in batch.keys]
        scores = queue.get_fields(batch, "rm_scores")["rm_scores"]
        name = adapter_options.credit_name(self.config)
        assert name is not None  # check_config refuses these composers with verl's estimators
        rewards_R = [float(scores_T.sum()) for scores_T in scores]
        return compute_advantages(rewards_R, groups, name).tolist()

    def _actor_ranks(self) -> int:
        """Data-parallel ranks of the actor."""
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        return max(workers._dispatch_info["actor"]) + 1

    def _micro_batch_sizes(self) -> tuple[int, list[int]]:
        """Rows per micro-batch in training (1 with use_dynamic_bsz), and in the scoring passes."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        train_size = 1 if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
        score_sizes = []
        if not rollout.log_prob_use_dynamic_bsz:
            score_sizes.append(rollout.log_prob_micro_batch_size_per_gpu)
        reference = self.config.actor_rollout_ref.ref
        if self.use_reference_policy and not reference.log_prob_use_dynamic_bsz:
            score_sizes.append(reference.log_prob_micro_batch_size_per_gpu)
        return train_size or 1, [size for size in score_sizes if size]

    # -- RB ------------------------------------------------------------------------------------

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        # Rows that waited were scored by older weights: verl's pass below overwrites their values,
        # so they are read first and written back.
        previously_scored = batch.select_keys(
            [key for key in batch.keys if key in self._scored_keys]
        )
        old_scores = (
            queue.get_fields(previously_scored, "old_log_probs", "entropy")
            if len(previously_scored)
            else None
        )
        if self._weighs_by_states:
            batch.extra_info[KEEP_STATES_KEY] = True
        batch = super()._compute_old_log_prob(batch, metrics)  # type: ignore[misc]
        batch.extra_info.pop(KEEP_STATES_KEY, None)
        if self._is_monitored:
            self._logprobs_before = queue.get_fields(batch, "old_log_probs")["old_log_probs"]
        if self.poise is None or not adapter_options.keeps_old_scores(self.config, self.poise):
            return batch
        self._keys_with_older_scores = set(previously_scored.keys)
        if old_scores is not None:
            queue.put_fields(previously_scored, old_scores)
        waiting = self.replay_buffer.waiting_batch(batch.partition_id)
        unscored = [key for key in waiting.keys if key not in self._scored_keys]
        if unscored:
            self._score_waiting(waiting.select_keys(unscored))
        self._scored_keys = set(waiting.keys)
        return batch

    def _score_waiting(self, waiting: KVBatchMeta) -> None:
        """Store old log-probabilities and entropies of waiting rows before the weights change."""
        _, sizes = self._micro_batch_sizes()
        multiple = self._actor_ranks() * (sizes[0] if sizes else 1)
        padded = upsample_batch_to_divisible_size(waiting, multiple, self.tokenizer.eos_token_id)
        super()._compute_old_log_prob(padded, {})  # type: ignore[misc]
        queue.clear_keys(padded, padded.keys[len(waiting) :])

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        uses_our_credit = adapter_options.credit_name(self.config) is not None
        if uses_our_credit and any(not key.endswith("_0") for key in batch.keys):
            raise PoiseError(
                "the poise_* estimators take one output per rollout, and this agent loop returns "
                "several: set algorithm.adv_estimator=grpo and +poise.tau=0"
            )
        batch = super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        if self.poise is None:
            return batch
        data = queue.get_fields(batch, "advantages", "response_mask")
        if self.balances:
            data["advantages"] = self._balanced_advantages(batch, data["response_mask"])
            queue.put_fields(batch, data.select("advantages"))
        metrics.update(self._plan_metrics(batch, data))
        if self.poise.weighs_tokens:
            workers, number = self.actor_rollout_wg, self.global_steps
            weigh_batch(batch, self.poise, self.config, workers, self.tokenizer, number)
        return batch

    def _balanced_advantages(self, batch: KVBatchMeta, mask_RT: Any) -> torch.Tensor:
        """The advantages of RB's rows; they differ from verl's where a group lost rows."""
        batch_rows = self.replay_buffer.batch_rows
        by_row = [
            mask_T.float() * (batch_rows[key].advantage if key in batch_rows else 0.0)
            for key, mask_T in zip(batch.keys, mask_RT.unbind(), strict=True)
        ]
        return torch.nested.as_nested_tensor(by_row, layout=torch.jagged)

    def _save_checkpoint(self) -> None:
        # Our part comes first: verl marks the checkpoint as the latest once its own part is saved.
        if self.balances:
            state = replace(self.replay_buffer.state(), scored_keys=self._scored_keys)
            save_state(Path(self.config.trainer.default_local_dir), self.global_steps, state)
        super()._save_checkpoint()  # type: ignore[misc]

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # type: ignore[misc]
        folder = checkpoint_to_resume(self.config)
        if self.balances and folder is not None:
            state, warning = load_state(folder, adapter_options.trainer_mode(self.config))
            if warning:
                echo_message(f"counterpoise: {warning}")
            self.replay_buffer.restore(state)
            self._scored_keys = set(state.scored_keys)

    # -- the plan, executed --------------------------------------------------------------------

    def _plan_metrics(self, batch: KVBatchMeta, data: TensorDict) -> dict[str, float]:
        """The plan's metrics, from the order and the advantages that the workers will get."""
        assert self.poise is not None
        plan = self._executed_plan(batch)
        rows = queue.composer_rows(batch, data)
        if self.poise.composer != adapter_options.VERL_ORDER:
            check_plan(rows, plan)
        description: Any = describe_plan(rows, plan)
        metrics = {
            name: float(value)
            for name, value in description.items()
            if isinstance(value, int | float)
        }
        metrics["optimizer_steps"] = float(len(plan.steps))
        metrics["fillers"] = float(len(batch.tags) - len(rows))
        return {f"{adapter_options.SECTION}/{name}": value for name, value in metrics.items()}

    def _executed_plan(self, batch: KVBatchMeta) -> BatchPlan:
        """Which rows share an optimizer step, read off the order that the workers get."""
        assert self.poise is not None
        is_row = [queue.is_real_row(tag) for tag in batch.tags]
        ranks = self._actor_ranks()
        return executed_plan(is_row, ranks, self._step_rows // ranks, self.poise.composer)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.poise is None:
            return super()._update_actor(batch, metrics)  # type: ignore[misc]
        request = self._coupling_request(batch) if self._is_monitored else {}
        requests = request | self._trajectory_request()
        with _resized_mini_batches(self.actor_rollout_wg, self._step_rows, requests):
            batch = super()._update_actor(batch, metrics)  # type: ignore[misc]
        for key in requests:
            batch.extra_info.pop(key, None)
        self._couplings = self._take_couplings() if request else []
        if self._is_monitored:
            metrics.update(self._measure_displacement(batch))
            metrics.update(self._coupling_metrics())
        if self._recorder:
            monitored = recorder.MonitoredUpdate(
                self._logprobs_before, self._logprobs_after, self._couplings
            )
            updates = adapter_options.updates_per_global_step(self.config)
            update = recorder.VerlUpdate(
                number=(self.global_steps - 1) * updates + self.local_trigger_step + 1,
                batch=batch,
                plan=self._executed_plan(batch),
                verl_metrics=metrics,
                monitored=monitored if self._is_monitored else None,
                sampled=self.replay_buffer.sampled_for_update() if self.balances else None,
                # verl scores later updates of a global step by the weights of its first.
                keys_with_older_scores=(
                    batch.keys if self.local_trigger_step else self._keys_with_older_scores
                ),
            )
            self._recorder.record(update, self.tokenizer)
        return batch

    def _trajectory_request(self) -> dict[str, str]:
        """How the workers weight whole rollouts, as an entry of the batch's `extra_info`."""
        assert self.poise is not None
        if self.poise.trajectory == "off":
            return {}
        # In these cases some old log-probabilities are not by the weights before the update.
        has_older_scores = (
            adapter_options.keeps_old_scores(self.config, self.poise)
            or adapter_options.bypasses_scoring(self.config)
            or self.local_trigger_step > 0
        )
        request = TrajectoryRequest(self.poise.trajectory, starts_on_policy=not has_older_scores)
        return {TRAJECTORY_KEY: request.to_text()}

    # -- the monitor ---------------------------------------------------------------------------

    def _coupling_request(self, batch: KVBatchMeta) -> dict[str, str]:
        """The rows whose pushes the workers compute, as an entry of the batch's `extra_info`."""
        assert self.poise is not None
        if self._coupling_fault:
            return {}
        plan = self._executed_plan(batch)
        rows = queue.composer_rows(batch, queue.get_fields(batch, "advantages", "response_mask"))
        indices = real_indices(batch)
        seed = seed_for(self.poise.seed, "monitor", self.global_steps)
        chosen_by_step = choose_coupled_rows(rows, plan, self.poise.monitor_tokens, seed)
        watched: set[str] = set()
        for step_rows in chosen_by_step:
            watched |= first_mixed_groups([rows[i] for i in step_rows], WATCHED_GROUPS)
        chosen_rows = [i for step_rows in chosen_by_step for i in step_rows]
        if not chosen_rows:
            return {}
        request = CouplingRequest(
            batch_indices=[indices[i] for i in chosen_rows],
            groups=[rows[i].group for i in chosen_rows],
            watched=sorted(watched),
            temperature=float(self.config.actor_rollout_ref.rollout.temperature),
        )
        return {REQUEST_KEY: request.to_text()}

    def _take_couplings(self) -> list[StepCoupling]:
        """What rank 0 measured; a fault is told once, and switches the measurement off."""
        by_rank = getattr(self.actor_rollout_wg, TAKE_COUPLINGS)()
        couplings = [coupling for results in by_rank for coupling in results]
        if faults := [coupling.fault for coupling in couplings if coupling.fault]:
            self._coupling_fault = faults[0]
            echo_message(f"counterpoise: pushes are not measured any more: {faults[0]}")
        return [coupling for coupling in couplings if coupling.measurement]

    def _coupling_metrics(self) -> dict[str, float]:
        numbers = monitor_metrics([c.measurement for c in self._couplings if c.measurement])
        return {
            f"{adapter_options.SECTION}/{name}": numbers[name]
            for name in COUPLING_METRICS
            if numbers[name] is not None
        }

    @property
    def _is_monitored(self) -> bool:
        every = self.poise.monitor_every if self.poise is not None else 0
        return every > 0 and self.global_steps % every == 0

    def _measure_displacement(self, batch: KVBatchMeta) -> dict[str, float]:
        """How the batch's log-probabilities moved: new weights against old."""
        scoring_batch = KVBatchMeta(
            partition_id=batch.partition_id, keys=batch.keys, tags=batch.tags
        )
        temperature = self.config.actor_rollout_ref.rollout.temperature
        scoring_batch.extra_info.update(
            calculate_entropy=False, compute_loss=False, temperature=temperature
        )
        self.actor_rollout_wg.compute_log_prob(scoring_batch)
        data = queue.get_fields(batch, "log_probs", "response_mask", "advantages")
        mask_RT = data["response_mask"]
        self._logprobs_after = response_from_nested(data["log_probs"], mask_RT)
        columns = (self._logprobs_before, self._logprobs_after, data["advantages"])
        shares = displacement_shares(*(queue.trained_values(column, mask_RT) for column in columns))
        return {f"{adapter_options.SECTION}/{name}": value for name, value in shares.items()}


@contextmanager
def _resized_mini_batches(workers: Any, rows: int, extra_info: Mapping[str, Any]) -> Iterator[None]:
    """Make `update_actor` take steps of `rows` rows, whatever the config's mini-batch size is.

    verl's token-mean loss divides by the tokens of the step. Its sequence losses divide by the
    config's number of rows, so a smaller step weighs less.
    """
    original = workers.update_actor

    def update_resized(batch: KVBatchMeta) -> Any:
        batch.extra_info.update(extra_info, mini_batch_size=rows)
        return original(batch)

    workers.update_actor = update_resized
    try:
        yield
    finally:
        workers.update_actor = original


def _use_sampler(config: Any, options: adapter_options.VerlAdapterOptions) -> None:
    """Name our sampler where verl's config names a custom one."""
    name = adapter_options.SAMPLER_CLASSES[adapter_options.trainer_mode(config)]
    with open_dict(config):
        sampler = config.trainer.v1.sampler
        sampler.custom_sampler = OmegaConf.create(
            {"path": adapter_options.SAMPLER_MODULE, "name": name}
        )
        sampler.sampler_kwargs = OmegaConf.create(
            {
                "tau": options.tau,
                "target": adapter_options.rollouts_per_batch(config),
                "unit": options.unit,
                "max_age": options.max_age,
                "max_refills": options.max_refills,
                "credit": adapter_options.credit_name(config),
                "keeps_rollouts": bool(options.run_folder),
            }
        )
