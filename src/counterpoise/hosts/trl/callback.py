"""Record a stock GRPOTrainer or RLOOTrainer: no subclass, no batch that differs from TRL's.

    trainer = GRPOTrainer(...)
    trainer.add_callback(PoiseCallback(trainer, "out/poise"))
    trainer.train()

transformers tells a callback when a step begins and ends, but not what was generated, how TRL
shuffled it, or what the loss computed. So for the time of `train()` five methods of that one
trainer are wrapped. Each calls TRL's own and returns its result unchanged:

    _generate_and_score_completions     what was sampled. It adds a row number to TRL's batch, which
                                        TRL shuffles and cuts with the rest
    _prepare_inputs                     takes the numbers out again, before any pass sees them:
                                        they say which rollouts share an optimizer step
    _calculate_rewards                  the rewards
    _get_per_token_logps_and_entropies  log-probabilities and entropies that the loss computes; of
                                        RLOOTrainer also the old ones, which its batch only has
                                        summed over a sequence
    _save_checkpoint                    the record is written first, for a run that resumes there

These names are TRL's own, so another version of TRL is refused (host.py). Random numbers, gradients
and weights are those of a trainer without the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer, RLOOTrainer

from counterpoise.errors import PoiseError
from counterpoise.hosts.recorded_steps import observed_step
from counterpoise.hosts.trl import host, processes
from counterpoise.hosts.trl.monitor import learning_rate
from counterpoise.hosts.trl.observed_trainer import ObservedTrainer
from counterpoise.hosts.trl.padding import (
    OLD_LOGPROBS,
    TrlBatch,
    find_unsupported,
    unpad,
)
from counterpoise.hosts.trl.planner import Decision, rows_by_trl
from counterpoise.hosts.trl.rewards import combine_rewards
from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer
from counterpoise.types import BatchPlan, Floats, StepResult

ROW_FIELD = "poise_row"  # the row number in TRL's batch
SEQUENCE_LOGPROBS = "old_logps"  # RLOOTrainer's old log-probabilities, summed over each sequence
TRL_PLAN = "trl"  # the rule of the plans: TRL's own shuffle and cut
WRAPPED_METHODS = (
    "_generate_and_score_completions",
    "_prepare_inputs",
    "_calculate_rewards",
    "_get_per_token_logps_and_entropies",
    "_save_checkpoint",
)
TokenNumbers = tuple[Floats, Floats]  # log-probabilities and entropies [T]
STOCK_TRAINERS = (GRPOTrainer, RLOOTrainer)


class PoiseCallback(TrainerCallback):
    """Writes the run folder of a stock trainer: plans, rollouts, tokens, and the monitor.

    Arguments:
        trainer         the GRPOTrainer or RLOOTrainer that it is added to
        run_folder      an empty folder; for a resumed run, the folder that it wrote before
        monitor_every   optimizer steps between measurements of what a step did to every token; 0
                        is off. The monitor reads the model, which must be whole on process 0,
                        and knows GRPOTrainer's losses only

    Example:
        trainer = GRPOTrainer(model, reward_funcs, args, train_dataset)
        trainer.add_callback(PoiseCallback(trainer, "out/poise", monitor_every=10))
    """

    def __init__(
        self, trainer: GRPOTrainer | RLOOTrainer, run_folder: str | Path, monitor_every: int = 0
    ) -> None:
        check_stock_trainer(trainer, monitor_every)
        self.observed = ObservedTrainer(trainer, Path(run_folder), monitor_every)
        self.trainer = trainer
        self._rewards_RF: Tensor | None = None  # of all processes, by reward function
        self._has_new_generation = False
        self._is_generating = False
        self._old_logprobs_BT: Tensor | None = None  # of the latest generation, if TRL drops them
        self._decision: Decision | None = None
        self._passes: list[list[int]] = []  # of this process: rows of the generation by pass
        self._pass_outputs: list[tuple[list[int], Tensor, Tensor | None]] = []  # of the open step
        self._learning_rate: float | None = None  # of the open step

    # -- transformers' events ------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A `train()` that was interrupted has left its wrappers and the numbers of an open step.
        self._unwrap()
        self._check_interruption()
        self._pass_outputs, self._has_new_generation, self._is_generating = [], False, False
        if self.observed.monitor:
            self.observed.monitor.forget_step()
        self.observed._generation = self._finished_generations(state.global_step)
        if self.observed.script_recorder:
            self.observed.script_recorder.start()
        observers: tuple[Callable[..., Any], ...] = (
            self._observe_generation,
            self._observe_passes,
            self._observe_rewards,
            self._observe_logprobs,
            self._observe_checkpoint,
        )
        for name, observe in zip(WRAPPED_METHODS, observers, strict=True):
            setattr(self.trainer, name, _wrap(getattr(self.trainer, name), observe))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # When the step ends, the scheduler has already moved on to the next one's rate.
        self._learning_rate = learning_rate(self.trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._record_step()
        if self.observed.monitor:
            self.observed.monitor.after_step()
        if self.observed.script_recorder:
            self.observed.script_recorder.count_step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.observed.script_recorder:
            self.observed.script_recorder.record_log(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._unwrap()
        if self.observed.script_recorder:
            self.observed.script_recorder.close_iteration()
            self.observed.script_recorder.folder.sync()

    def _unwrap(self) -> None:
        for name in WRAPPED_METHODS:
            self.trainer.__dict__.pop(name, None)

    def _check_interruption(self) -> None:
        """Refuse to go on after Ctrl-C within a generation: what is left would be misrecorded."""
        passes = self.trainer.args.steps_per_generation
        if self.trainer._buffered_inputs is not None and self.trainer._step % passes:
            raise PoiseError(
                "this trainer was interrupted within a generation, and TRL would first train on "
                "what is left of it: make a new trainer with PoiseCallback to resume"
            )

    def _finished_generations(self, steps: int) -> int:
        """Generations after `steps` optimizer steps; one that was cut off by a checkpoint counts.

        After a resume TRL starts a new generation, also in place of one that was cut off. Then
        `steps` alone does not tell the number, so it is read from the record where there is one.
        """
        recorder, accelerator = self.observed.script_recorder, self.trainer.accelerator
        recorded: int | None = processes.decide_on_first_process(
            lambda: recorder.generation_of_step(steps) if recorder else None,
            accelerator.process_index,
            accelerator.num_processes,
        )
        return -(-steps // self.observed.optimizer_steps) if recorded is None else recorded

    # -- TRL's methods -------------------------------------------------------------------------

    def _observe_generation(self, generate: Callable[..., TrlBatch], inputs: Any) -> TrlBatch:
        if not self.trainer.model.training:  # an evaluation trains nothing
            return generate(inputs)
        observed = self.observed
        observed._generation += 1
        if observed.script_recorder:
            observed.script_recorder.begin_iteration(observed._generation)
        self._is_generating, self._old_logprobs_BT = True, None
        batch = generate(inputs)
        self._is_generating = False
        token_batch = self._with_token_logprobs(batch)
        if unsupported := find_unsupported(token_batch):
            raise PoiseError(
                f"PoiseCallback records text, not '{unsupported}': train without the callback"
            )
        num_processes = self.trainer.accelerator.num_processes
        pad_token = self.trainer._tokenizer.pad_token_id
        samples = processes.gather_lists(unpad(token_batch, pad_token), num_processes)
        prompts = processes.gather_lists([example["prompt"] for example in inputs], num_processes)
        G = self.trainer.num_generations
        observed.rollouts_by_key = {
            (f"{observed._generation}:{i // G}", i % G): sample for i, sample in enumerate(samples)
        }
        observed.planner.credited_groups = rows_by_trl(samples, G, observed._generation)
        assert self._rewards_RF is not None  # _calculate_rewards has run
        rewards_R = combine_rewards(self._rewards_RF, self.trainer.reward_weights)
        if observed.script_recorder:
            observed.script_recorder.record_samples(prompts, samples, rewards_R)
        num_rows = len(batch["completion_ids"])
        first_row = self.trainer.accelerator.process_index * num_rows
        batch[ROW_FIELD] = torch.arange(first_row, first_row + num_rows)
        self._has_new_generation = True
        return batch

    def _with_token_logprobs(self, batch: TrlBatch) -> TrlBatch:
        """TRL's batch with old log-probabilities of tokens, where it has those of sequences."""
        if SEQUENCE_LOGPROBS not in batch:
            return batch
        fields = {name: value for name, value in batch.items() if name != SEQUENCE_LOGPROBS}
        return {**fields, OLD_LOGPROBS: self._old_logprobs_BT}

    def _observe_passes(self, prepare: Callable[..., TrlBatch], generation_batch: Any) -> TrlBatch:
        inputs = prepare(generation_batch)
        if not self.trainer.model.training:
            return inputs
        if self._has_new_generation:
            self._has_new_generation = False
            self._decide()
        options = self.trainer.args
        pass_index = self.trainer._step % options.steps_per_generation
        self._pass_outputs.append((self._passes[pass_index], torch.empty(0), None))
        step, later_pass = divmod(pass_index, options.gradient_accumulation_steps)
        if self.observed.monitor and self._decision and not later_pass:
            self.observed.monitor.before_step(self._decision, step)
        return inputs

    def _observe_rewards(self, calculate: Callable[..., Tensor], *args: Any) -> Tensor:
        rewards = calculate(*args)
        self._rewards_RF = rewards
        return rewards

    def _observe_logprobs(self, score: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        outputs = score(*args, **kwargs)
        # RLOOTrainer scores a generation by the policy first, then by the reference model.
        if self._is_generating and isinstance(self.trainer, RLOOTrainer):
            if self._old_logprobs_BT is None:
                self._old_logprobs_BT = outputs[0].detach()
            return outputs
        # Old and reference log-probabilities are computed without gradients; those are not wanted.
        if torch.is_grad_enabled() and self._pass_outputs:
            logprobs, entropies = outputs[0], outputs[1]
            rows = self._pass_outputs[-1][0]
            self._pass_outputs[-1] = (
                rows,
                logprobs.detach(),
                None if entropies is None else entropies.detach(),
            )
        return outputs

    def _observe_checkpoint(self, save: Callable[..., None], *args: Any) -> None:
        # transformers' event on_save comes too late: a run that is killed in between would resume
        # from a checkpoint that the record does not reach.
        if self.observed.script_recorder:
            self.observed.script_recorder.write_for_checkpoint()
        save(*args)
        if self.observed.script_recorder:
            self.observed.script_recorder.remove_outdated_parts()

    # -- what they show ------------------------------------------------------------------------

    def _decide(self) -> None:
        """Read TRL's shuffle and cut from the row numbers, and take these out of its batches."""
        batches = self.trainer._buffered_inputs
        self._passes = [batch.pop(ROW_FIELD).tolist() for batch in batches]
        num_processes = self.trainer.accelerator.num_processes
        passes_by_process = processes.gather_lists([self._passes], num_processes)
        accumulated = self.trainer.args.gradient_accumulation_steps
        steps = tuple(
            tuple(
                row
                for passes in passes_by_process
                for pass_rows in passes[start : start + accumulated]
                for row in pass_rows
            )
            for start in range(0, len(self._passes), accumulated)
        )
        rows = tuple(row for group in self.observed.planner.credited_groups for row in group)
        self._decision = Decision(rows, BatchPlan(TRL_PLAN, steps), frozenset(), {})
        if self.observed.script_recorder:
            self.observed.script_recorder.record_decision(self._decision)

    def _record_step(self) -> None:
        """Record the tokens of the step that has just been taken, as TRL's own loss saw them."""
        pass_outputs, self._pass_outputs = self._pass_outputs, []
        numbers = [
            (row, token_numbers)
            for rows, logprobs_BT, entropies_BT in pass_outputs
            for row, token_numbers in _split_rows(rows, logprobs_BT, entropies_BT)
        ]
        numbers = processes.gather_lists(numbers, self.trainer.accelerator.num_processes)
        recorder = self.observed.script_recorder
        if recorder is None or recorder.iteration is None or self._decision is None or not numbers:
            return
        step = recorder.iteration.steps_taken
        result = self._step_result(self._decision, step, dict(numbers))
        recorder.iteration.results[step] = result

    def _step_result(
        self, decision: Decision, step: int, numbers: dict[int, TokenNumbers]
    ) -> StepResult:
        plan_rows = decision.plan.steps[step]
        samples = {i: self.observed.rollouts_by_key[decision.rows[i].name] for i in plan_rows}
        # A KL in the loss trains rows without an advantage too; RLOOTrainer's is in the reward.
        has_kl = isinstance(self.trainer, GRPOTrainer) and self.trainer.args.beta != 0
        used = tuple(i for i in plan_rows if decision.rows[i].has_loss(all_rows=has_kl))
        logprobs, entropies = (
            [numbers[i][k][: len(samples[i].completion_T)][samples[i].is_policy_T] for i in used]
            for k in (0, 1)
        )
        old_logprobs = [samples[i].old_logprobs for i in used]
        return observed_step(
            used,
            logprobs=logprobs,
            old_logprobs=[
                new if old is None else old for old, new in zip(old_logprobs, logprobs, strict=True)
            ],
            advantages=[decision.rows[i].advantages_T for i in used],
            entropies=entropies,
            tokens=sum(decision.rows[i].loss_tokens for i in plan_rows),
            learning_rate=self._learning_rate,
        )


def check_stock_trainer(trainer: Any, monitor_every: int) -> None:
    """Refuse what the callback cannot record, before training begins."""
    if not isinstance(trainer, STOCK_TRAINERS):
        raise PoiseError(
            f"PoiseCallback records TRL's GRPOTrainer and RLOOTrainer, not "
            f"{type(trainer).__name__}: pass it the trainer that you add it to"
        )
    options = trainer.args
    if isinstance(trainer, PoiseGRPOTrainer):
        raise PoiseError(
            "PoiseGRPOTrainer records itself: set run_folder in PoiseConfig, and leave "
            "PoiseCallback out"
        )
    if isinstance(trainer, RLOOTrainer):
        if changes := host.find_changes(type(trainer), WRAPPED_METHODS):
            raise PoiseError(f"RLOOTrainer differs from the one we tested: {changes[0]}")
        if monitor_every:
            raise PoiseError(
                "monitor_every knows GRPOTrainer's losses, not RLOOTrainer's: set it to 0, and "
                "measure the recorded updates with poise replay"
            )
    if monitor_every < 0:
        raise PoiseError(f"monitor_every={monitor_every} is negative: 0 is off")
    if trainer.num_iterations > 1:
        raise PoiseError(
            "PoiseCallback records one update of each rollout, and num_iterations="
            f"{trainer.num_iterations} makes several: set num_iterations=1"
        )
    passes, accumulated = options.steps_per_generation, options.gradient_accumulation_steps
    if passes % accumulated:
        raise PoiseError(
            f"steps_per_generation={passes} is no multiple of gradient_accumulation_steps="
            f"{accumulated}: an optimizer step would span two generations, which a plan cannot say"
        )
    passes_in_step = accumulated * trainer.accelerator.num_processes  # each has its own token mean
    if monitor_every and options.loss_type == "bnpo" and passes_in_step > 1:
        raise PoiseError(
            "monitor_every cannot reproduce how loss_type='bnpo' averages over several passes: set "
            "monitor_every=0, or loss_type='dapo'"
        )


def _wrap(method: Callable[..., Any], observe: Callable[..., Any]) -> Callable[..., Any]:
    """`observe(method, ...)` in place of `method(...)`."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return observe(method, *args, **kwargs)

    return wrapped


def _split_rows(
    rows: Sequence[int], logprobs_BT: Tensor, entropies_BT: Tensor | None
) -> list[tuple[int, TokenNumbers]]:
    """(row, its log-probabilities and entropies), in one copy to the host."""
    if not logprobs_BT.numel():
        return []
    if entropies_BT is None:
        entropies_BT = torch.full_like(logprobs_BT, torch.nan)
    values_2BT = torch.stack((logprobs_BT.float(), entropies_BT.float())).cpu().numpy()
    return [(row, (values_2BT[0, i], values_2BT[1, i])) for i, row in enumerate(rows)]
