"""GRPOTrainer with a plan in place of the shuffle.

TRL generates for `steps_per_generation` passes at once, shuffles the rows and cuts them, so that a
group is scattered over the optimizer steps of its generation. Here `_prepare_inputs` follows a plan
instead: rows of all processes -> credit -> balance -> compose, decided on process 0 and executed by
each process for its share. The loss is TRL's; its denominator is that of the optimizer step:

    dapo, cispo, vespo            sum / (tokens of the step)
    bnpo                          the same: passes are weighted by their tokens
    grpo, sapo, dr_grpo, luspo    passes are weighted by their rows

A generation's first step starts from the weights that sampled it. There TRL gets no old
log-probabilities, so that it uses those of the pass itself and the ratio is exactly 1, as in the
native engine; those of a scoring pass would differ by rounding, since its batch layout differs.
"""

from __future__ import annotations

from collections.abc import Sized
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from counterpoise.batch.buffer import BufferCounts
from counterpoise.credit.assign import UNIFORM
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import processes
from counterpoise.hosts.trl.checkpoint import CheckpointExtras, load_extras, save_extras
from counterpoise.hosts.trl.config import TOKEN_AVERAGED_LOSSES, PoiseConfig
from counterpoise.hosts.trl.host import PROBE_READING_WEIGHTS
from counterpoise.hosts.trl.monitor import StepMonitor, dapo_loss_scale, step_end_callback
from counterpoise.hosts.trl.native_policy import (
    as_native_policy,
    check_native_forward,
    new_micro_batch,
)
from counterpoise.hosts.trl.padding import (
    OLD_LOGPROBS,
    TrlBatch,
    UnpaddedRollout,
    pad_batch,
    read_trajectories,
    unpad,
)
from counterpoise.hosts.trl.planner import Decision, Planner, RolloutKey
from counterpoise.hosts.trl.rewards import combine_rewards
from counterpoise.hosts.trl.row_layout import lay_out_step
from counterpoise.hosts.trl.script_probes import ScriptProbes
from counterpoise.hosts.trl.script_recorder import (
    ScriptRecorder,
    describe_planned_run,
    recorder_callback,
)
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.seeds import rng_for, seed_for
from counterpoise.types import Row

LOSS_SCALE = "poise_scale"  # the batch's key for the factor of its loss


class PoiseGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with planned batches.

    Example:
        PoiseGRPOTrainer(model="Qwen/Qwen3-0.6B", reward_funcs=accuracy_reward,
                         args=PoiseConfig(steps_per_generation=4, gradient_accumulation_steps=1),
                         train_dataset=dataset).train()
    """

    args: PoiseConfig
    _buffered_inputs: list[TrlBatch] | None  # TRL's attribute: the passes of a generation

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.args, PoiseConfig):
            raise PoiseError("PoiseGRPOTrainer needs args=PoiseConfig(...), not TRL's GRPOConfig")
        if self.aux_loss_enabled and self.args.loss_type not in TOKEN_AVERAGED_LOSSES:
            raise PoiseError("a mixture of experts has an auxiliary loss: set loss_type='dapo'")
        if self.args.tau and self.args.max_refills and not isinstance(self.train_dataset, Sized):
            raise PoiseError(
                "tau > 0 draws further prompts, which needs a dataset with a length: "
                "load it whole, or set tau=0"
            )
        if self.args.credit_weights != UNIFORM:
            check_native_forward(self, "credit_weights", "use 'uniform'")
        self.planner = Planner(self.args)
        self.decision: Decision | None = None
        # The rollouts of the current decision and those that wait for a balanced batch.
        self.rollouts_by_key: dict[RolloutKey, UnpaddedRollout] = {}
        self._generation = 0  # the number of the latest generation
        self._weights_changed_at = 0  # the generation after which the weights changed last
        self._rewards_RF: Tensor | None = None  # latest generation of all processes, by function
        self.add_callback(_StartOfTraining(self))
        self.probes = self._make_probes()
        self.monitor: StepMonitor | None = None
        if self.args.monitor_every or self.probes:
            self.monitor = StepMonitor(self)
            self.add_callback(step_end_callback(self.monitor))
        self.script_recorder: ScriptRecorder | None = None
        if self.args.run_folder and self.accelerator.is_main_process:
            self.script_recorder = ScriptRecorder(
                self, Path(self.args.run_folder), describe_planned_run
            )
            self.add_callback(recorder_callback(self.script_recorder))

    # -- TRL's private methods; host.py lists them ---------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        # Evaluation has no optimizer steps to plan.
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        passes = self.args.steps_per_generation
        if self._step % (passes * self.num_iterations) == 0 or self._buffered_inputs is None:
            self.decision = self._decide(generation_batch)
            self._buffered_inputs = self._build_passes(self.decision)
        pass_index = self._step % passes
        passes_per_step = self.args.gradient_accumulation_steps
        if self.monitor and self.decision and pass_index % passes_per_step == 0:
            self.monitor.before_step(self.decision, pass_index // passes_per_step)
        return self._buffered_inputs[pass_index]

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(
            inputs, prompts, completions, completion_ids_list
        )
        self._rewards_RF = rewards
        return rewards

    def _compute_loss(self, model: Any, inputs: TrlBatch) -> Tensor:
        scale = inputs.get(LOSS_SCALE)
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss if scale is None else loss * scale

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.script_recorder:
            # On resume the recorder rewinds to this checkpoint: its records must be on disk first.
            self.script_recorder.write_for_checkpoint()
        super()._save_checkpoint(model, trial)
        if not self.accelerator.is_main_process:
            return
        if self.script_recorder:
            self.script_recorder.remove_outdated_parts()
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        buffer = self.planner.buffer
        rows = buffer.state() if buffer is not None else ()
        counts = buffer.counts if buffer is not None else BufferCounts()
        extras = CheckpointExtras(
            self._generation,
            rows,
            counts,
            self.rollouts_by_key,
            self.probes.written_answers() if self.probes else None,
        )
        save_extras(folder, extras)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        extras = load_extras(Path(checkpoint)) if checkpoint else None
        if extras is None:
            return
        self._generation = extras.generation
        if self.probes and extras.probes:
            self.probes.answers = extras.probes
        if self.planner.buffer is not None:
            self.rollouts_by_key = dict(extras.rollouts_by_key)
            self.planner.restore_buffer(extras.rows, extras.counts)

    # -- a generation -> a decision ------------------------------------------------------------

    def _decide(self, generation_batch: list[dict[str, Any]]) -> Decision:
        """Generate until a batch can be taken, at most max_refills + 1 times."""
        process, num_processes = self.accelerator.process_index, self.accelerator.num_processes
        # The weights have just been updated: only rollouts sampled from now on are on-policy.
        self._weights_changed_at = self._generation
        for refills in range(self.args.max_refills + 1):
            prompts = self._next_prompts(generation_batch, refills)
            self._generation += 1
            if self.script_recorder:
                self.script_recorder.begin_iteration(self._generation)
            if self.probes:
                self.probes.draw_if_due(self._generation)
            samples, rewards_R = self._generate_all(prompts)

            # Defaults bind this round's values: the loop variables change.
            def plan(samples: Any = samples, rewards_R: Any = rewards_R) -> Decision | None:
                self.planner.add(samples, rewards_R, self._generation, self._reader())
                seed = seed_for(self.args.seed, "compose", self._generation)
                return self.planner.decide(self._generation, seed)

            decision = processes.decide_on_first_process(plan, process, num_processes)
            if decision is not None:
                self._log_decision(decision, refills)
                if self.probes:
                    self.probes.begin_update(self._generation, len(decision.plan.steps))
                if self.script_recorder:
                    self.script_recorder.record_decision(decision)
                return decision
        if self.script_recorder:
            self.script_recorder.close_iteration()  # the record shows why no batch was balanced
        raise PoiseError(
            processes.decide_on_first_process(self._explain_imbalance, process, num_processes)
        )

    def _explain_imbalance(self) -> str:
        assert self.planner.buffer is not None  # without RB every generation is a batch
        return self.planner.buffer.shortage_message(
            f"{self.args.max_refills + 1} generations",
            "lower tau or balance_target, raise max_refills and max_age",
        )

    @cached_property
    def policy(self) -> Policy:
        """TRL's model as the native engine's policy."""
        return as_native_policy(self)

    @cached_property
    def micro_batch(self) -> FittedSize:
        """The tokens of one pass with which `policy` reads rows."""
        return new_micro_batch()

    def _reader(self) -> PolicyReader | None:
        """The reader with which token weights read a generation's rows before training on them."""
        if self.args.credit_weights == UNIFORM:
            return None
        return PolicyReader(
            self.policy,
            self.temperature,
            self.micro_batch,
            self._generation,
            self.args.seed,
            steering_rows=self.probes.steering_rows() if self.probes else None,
        )

    def _make_probes(self) -> ScriptProbes | None:
        """The held-out answers of this trainer, if it follows any."""
        if self.args.follows_probes:
            return ScriptProbes(self)
        if self.args.credit_weights in PROBE_READING_WEIGHTS:
            raise PoiseError(
                f"credit_weights='{self.args.credit_weights}' reads held-out answers: set probe=64 "
                "and run_folder, or choose other weights"
            )
        return None

    def _next_prompts(
        self, generation_batch: list[dict[str, Any]], refills: int
    ) -> list[dict[str, Any]]:
        """This process's prompts: from TRL's loader, or newly drawn ones for a refill."""
        return self._draw_prompts(refills) if refills else generation_batch

    def _generate_all(
        self, prompts: list[dict[str, Any]]
    ) -> tuple[list[UnpaddedRollout], list[float]]:
        """Generate; return the rollouts of all processes and their rewards, NaN where unscored."""
        batch = self._generate_and_score_completions(prompts)
        # Rows that wait are trained on after an update: score them with the weights that sampled.
        if self.args.tau and OLD_LOGPROBS not in batch:
            batch[OLD_LOGPROBS] = self._score_rollouts(batch)
        own_samples = unpad(batch, self._tokenizer.pad_token_id, read_trajectories(prompts))
        samples = processes.gather_lists(own_samples, self.accelerator.num_processes)
        G = self.num_generations
        for index, sample in enumerate(samples):
            self.rollouts_by_key[f"{self._generation}:{index // G}", index % G] = sample
        assert self._rewards_RF is not None  # _calculate_rewards has run
        rewards_R = combine_rewards(self._rewards_RF, self.reward_weights)
        if self.args.run_folder:
            # A collective call: every process takes part, although only process 0 records.
            all_prompts = processes.gather_lists(
                [example["prompt"] for example in prompts], self.accelerator.num_processes
            )
            if self.script_recorder:
                self.script_recorder.record_samples(all_prompts, samples, rewards_R)
        return samples, rewards_R

    def _score_rollouts(self, batch: TrlBatch) -> Tensor:
        """Old log-probabilities, which TRL skips when it expects to train on all rows at once."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        with torch.no_grad():
            outputs = self._get_per_token_logps_and_entropies(
                self.model,
                ids,
                mask,
                batch["completion_ids"].size(1),
                self.args.per_device_train_batch_size,
            )
        logprobs: Tensor = outputs[0]
        return logprobs

    def _draw_prompts(self, refill: int) -> list[dict[str, Any]]:
        """This process's prompts of a further generation, drawn from the dataset."""
        size = len(self.train_dataset)
        G = self.num_generations
        num_prompts = self.args.generation_batch_size // G
        # The same seed on every process: all draw the same prompts and take their share of them.
        rng = rng_for(self.args.seed, "refill", self.state.global_step, refill)
        prompts_P = rng.choice(size, num_prompts, replace=size < num_prompts)
        indices_R = [int(example_index) for example_index in prompts_P for _ in range(G)]
        rows_per_process = len(indices_R) // self.accelerator.num_processes
        first_row = self.accelerator.process_index * rows_per_process
        return [
            dict(self.train_dataset[example_index])
            for example_index in indices_R[first_row : first_row + rows_per_process]
        ]

    def _log_decision(self, decision: Decision, refills: int) -> None:
        """Log what was decided, and forget the rollouts that no later step can use."""
        needed = decision.waiting | {(row.group, row.index) for row in decision.rows}
        self.rollouts_by_key = {
            key: sample for key, sample in self.rollouts_by_key.items() if key in needed
        }
        for name, value in {**decision.metrics, "refills": float(refills)}.items():
            self._metrics["train"][f"poise/{name}"].append(value)

    # -- what the monitor and the recorder read; ObservedTrainer has the same ------------------

    records_tokens = False  # only steps that the monitor reads have tokens in the run folder

    @property
    def monitor_every(self) -> int:
        return self.args.monitor_every

    @property
    def asking_option(self) -> str:
        """The option that asked for the monitor."""
        return self.args.monitor_option

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of one generation."""
        return self.args.optimizer_steps

    def loss_scale(self, decision: Decision, step: int) -> float:
        """The factor that turns the mean over the step's own tokens or rows into TRL's loss.

        1 except for `dapo` with denominator='trl'. PoiseConfig allows the monitor with 'trl' and
        another loss only where a step is a single pass: TRL's mean over the pass is the step's.
        """
        keeps_trl_average = self.args.denominator == "trl" and self.args.loss_type == "dapo"
        return dapo_loss_scale(decision, step) if keeps_trl_average else 1.0

    def on_policy(self, decision: Decision, step: int) -> bool:
        """Whether all rows of the step were sampled by the weights that it starts from."""
        rows = (decision.rows[i] for i in decision.plan.steps[step])
        single_epoch = self.num_iterations == 1
        return (
            single_epoch and step == 0 and all(row.born > self._weights_changed_at for row in rows)
        )

    # -- a decision -> this process's passes ---------------------------------------------------

    def _build_passes(self, decision: Decision) -> list[TrlBatch]:
        rows = decision.rows
        samples = [self.rollouts_by_key[row.group, row.index] for row in rows]
        lengths_R = [len(sample.prompt_S) + len(sample.completion_T) for sample in samples]
        passes = self.args.gradient_accumulation_steps
        batches, largest_pass = [], 0
        for step_index, step in enumerate(decision.plan.steps):
            layout = lay_out_step(step, lengths_R, passes, self.accelerator.num_processes)
            largest_pass = max(largest_pass, *(len(cell) for cells in layout for cell in cells))
            on_policy = self.on_policy(decision, step_index)
            for rows_by_process in layout:
                batches.append(self._build_pass(rows_by_process, step, rows, samples, on_policy))
        self._metrics["train"]["poise/largest_pass"].append(float(largest_pass))
        return batches

    def _build_pass(
        self,
        rows_by_process: list[list[int]],
        step: tuple[int, ...],
        rows: tuple[Row, ...],
        samples: list[UnpaddedRollout],
        on_policy: bool,
    ) -> TrlBatch:
        """This process's batch of one pass of a step."""
        own_rows = rows_by_process[self.accelerator.process_index]
        # TRL gathers numbers by row, and every process must take part in the gradient. So a process
        # with fewer rows than others, or none, is filled up with a row that is masked out.
        num_rows = max(1, *map(len, rows_by_process))
        filler = min(step, key=lambda i: (len(samples[i].completion_T), i))
        padded_rows = own_rows + [filler] * (num_rows - len(own_rows))
        batch = pad_batch(
            [samples[i] for i in padded_rows],
            [rows[i] for i in padded_rows],
            pad_token=self._tokenizer.pad_token_id,
            multiple=self.pad_to_multiple_of,
            device=self.accelerator.device,
        )
        batch["completion_mask"][len(own_rows) :] = 0
        if on_policy:
            batch.pop(OLD_LOGPROBS, None)
        self._set_denominator(
            batch,
            row_share=num_rows / len(step),
            pass_tokens=sum(rows[i].loss_tokens for i in own_rows),
            step_tokens=sum(rows[i].loss_tokens for i in step),
            all_tokens=sum(row.loss_tokens for row in rows),
        )
        return batch

    def _set_denominator(
        self,
        batch: TrlBatch,
        *,
        row_share: float,
        pass_tokens: int,
        step_tokens: int,
        all_tokens: int,
    ) -> None:
        """Set the token count that TRL's `_compute_loss` divides by, or a factor that corrects it.

        `row_share` is this process's number of rows in the pass, fillers included, over the rows of
        the whole step; `pass_tokens` are this process's too.
        """
        passes = self.args.gradient_accumulation_steps
        keeps_trl_average = self.args.denominator == "trl"
        count = float(all_tokens)
        if not keeps_trl_average:
            # TRL multiplies the count by passes / steps_per_generation: undo it.
            count = step_tokens * self.args.steps_per_generation / passes
        batch["num_items_in_batch"] = torch.tensor(count, device=self.accelerator.device)
        if keeps_trl_average or self.args.loss_type in TOKEN_AVERAGED_LOSSES:
            return
        # TRL's other losses are means over a pass, averaged over passes and processes: weight each
        # by its share of the step.
        token_share = pass_tokens / max(step_tokens, 1)
        share = token_share if self.args.loss_type == "bnpo" else row_share
        batch[LOSS_SCALE] = share * (passes * self.accelerator.num_processes)


class _StartOfTraining(TrainerCallback):
    """Forgets what a `train()` that was interrupted has left: the next begins with a generation."""

    def __init__(self, trainer: PoiseGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        trainer._step, trainer._buffered_inputs, trainer.decision = 0, None, None
        if trainer.monitor:
            trainer.monitor.forget_step()
