"""GRPOTrainer with a plan in place of the shuffle.

TRL generates for `steps_per_generation` passes at once, shuffles the rows and cuts them, so that a
group is scattered over the optimizer steps of its generation. Here `_prepare_inputs` puts a plan
there: rows of all processes -> credit -> balance -> compose, decided once and executed by each
process for its part. The loss is TRL's; its denominator is the optimizer step's own:

    by tokens (dapo, cispo, vespo)   sum / (tokens of the step)
    bnpo                             the same: passes weigh by their tokens
    grpo, sapo, dr_grpo, luspo       passes weigh by their rows

A generation's first step is taken by the weights that sampled it. There TRL is handed no old
log-probabilities, so that it takes the pass's own and the ratio is 1, as in the native engine;
those it had scored differ by the rounding of another layout.
"""

from __future__ import annotations

from collections.abc import Sized
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from counterpoise.batch.buffer import BufferCounts
from counterpoise.credit.assign import UNIFORM
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import processes
from counterpoise.hosts.trl.batch_rules import Decision, Key, Planner
from counterpoise.hosts.trl.checkpoint import Waiting, load, save
from counterpoise.hosts.trl.config import BY_TOKENS, PoiseConfig
from counterpoise.hosts.trl.monitor import StepMonitor, callback
from counterpoise.hosts.trl.native_rows import MICRO_TOKENS, check_whole, native
from counterpoise.hosts.trl.row_layout import lay_out
from counterpoise.hosts.trl.samples import Batch, Sample, join, split
from counterpoise.hosts.trl.script_recorder import Record
from counterpoise.hosts.trl.script_recorder import callback as bells
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.load import Policy
from counterpoise.seeds import rng_for, seed_for
from counterpoise.types import Row

SCALE = "poise_scale"  # what a pass's loss is multiplied by
OLD = "old_per_token_logps"


class PoiseGRPOTrainer(GRPOTrainer):
    """
    Example:
        PoiseGRPOTrainer(model="Qwen/Qwen3-0.6B", reward_funcs=accuracy_reward,
                         args=PoiseConfig(steps_per_generation=4, gradient_accumulation_steps=1),
                         train_dataset=dataset).train()
    """

    args: PoiseConfig
    _buffered_inputs: list[Batch] | None  # TRL's: the passes of a generation

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.args, PoiseConfig):
            raise PoiseError("PoiseGRPOTrainer needs args=PoiseConfig(...), not TRL's GRPOConfig")
        if self.aux_loss_enabled and self.args.loss_type not in BY_TOKENS:
            raise PoiseError("a mixture of experts has an auxiliary loss: set loss_type='dapo'")
        if self.args.tau and self.args.max_refills and not isinstance(self.train_dataset, Sized):
            raise PoiseError(
                "tau > 0 draws further prompts, which a dataset without a length does not give: "
                "load it whole, or set tau=0"
            )
        if self.args.credit_weights != UNIFORM:
            check_whole(self, "credit_weights", "use 'uniform'")
        self.planner = Planner(self.args)
        self.decision: Decision | None = None
        self.shelf: dict[Key, Sample] = {}  # of the decision, and of what waits
        self._generation = 0  # times that rollouts were sampled
        self._moved = 0  # the generation after which the weights changed last
        self._rewards_RF: Tensor | None = None  # of the latest generation, all processes
        self.monitor: StepMonitor | None = None
        if self.args.monitor_every:
            self.monitor = StepMonitor(self)
            self.add_callback(callback(self.monitor))
        self.record: Record | None = None
        if self.args.run_folder and self.accelerator.is_main_process:
            self.record = Record(self, Path(self.args.run_folder))
            self.add_callback(bells(self.record))

    # -- TRL's private methods; host.py lists them ---------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        passes = self.args.steps_per_generation
        if self._step % (passes * self.num_iterations) == 0 or self._buffered_inputs is None:
            self.decision = self._decide(generation_batch)
            self._buffered_inputs = self._execute(self.decision)
        place = self._step % passes
        together = self.args.gradient_accumulation_steps
        if self.monitor and self.decision and place % together == 0:
            self.monitor.before_update(self.decision, place // together)
        return self._buffered_inputs[place]

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(
            inputs, prompts, completions, completion_ids_list
        )
        self._rewards_RF = rewards
        return rewards

    def _compute_loss(self, model: Any, inputs: Batch) -> Tensor:
        scale = inputs.get(SCALE)
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss if scale is None else loss * scale

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.record and self._step % self.args.steps_per_generation == 0:
            self.record.close()  # its last optimizer step is done
        if self.record:
            self.record.folder.sync()  # the checkpoint counts on what was recorded before it
        super()._save_checkpoint(model, trial)
        if not self.accelerator.is_main_process:
            return
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        buffer = self.planner.buffer
        rows = buffer.state() if buffer is not None else ()
        counts = buffer.counts if buffer is not None else BufferCounts()
        save(folder, Waiting(self._generation, rows, counts, self.shelf))

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        saved = load(Path(checkpoint)) if checkpoint else None
        if saved is None:
            return
        self._generation = saved.generation
        if self.planner.buffer is not None:
            self.shelf = dict(saved.shelf)
            self.planner.take_up(saved.rows, saved.counts)

    # -- a generation -> a decision ------------------------------------------------------------

    def _decide(self, generation_batch: list[dict[str, Any]]) -> Decision:
        """Generate, and generate more until a batch can be taken."""
        process, together = self.accelerator.process_index, self.accelerator.num_processes
        self._moved = self._generation
        for refills in range(self.args.max_refills + 1):
            prompts = self._next_prompts(generation_batch, refills)
            self._generation += 1
            if self.record:
                self.record.begin(self._generation)
            samples, rewards_R = self._generate_all(prompts)

            def plan(samples: Any = samples, rewards_R: Any = rewards_R) -> Decision | None:
                self.planner.add(samples, rewards_R, self._generation, self._reader())
                seed = seed_for(self.args.seed, "compose", self._generation)
                return self.planner.take(self._generation, seed)

            decision = processes.agree(plan, process, together)
            if decision is not None:
                self._tell(decision, refills)
                if self.record:
                    self.record.decided(decision)
                return decision
        if self.record:
            self.record.close()  # the last generation, to see why
        raise PoiseError(processes.agree(self._unbalanced, process, together))

    def _unbalanced(self) -> str:
        assert self.planner.buffer is not None  # else every generation is a batch
        return self.planner.buffer.shortage_message(
            f"{self.args.max_refills + 1} generations",
            "lower tau or balance_target, raise max_refills and max_age",
        )

    @cached_property
    def policy(self) -> Policy:
        """TRL's model as the native engine sees it."""
        return native(self)

    def _reader(self) -> PolicyReader | None:
        """Who reads a generation's rows for token weights, before anything is trained on them."""
        if self.args.credit_weights == UNIFORM:
            return None
        micro = MicroBatch(MICRO_TOKENS)
        return PolicyReader(self.policy, self.temperature, micro, self._generation, self.args.seed)

    def _next_prompts(
        self, generation_batch: list[dict[str, Any]], refills: int
    ) -> list[dict[str, Any]]:
        """This process's part of the next generation: what TRL's loader brought, then others."""
        return self._more_prompts(refills) if refills else generation_batch

    def _generate_all(self, prompts: list[dict[str, Any]]) -> tuple[list[Sample], list[float]]:
        """The rollouts of all processes and their rewards; each is put on the shelf by its key."""
        own = self._generate_and_score_completions(prompts)
        if self.args.tau and OLD not in own:
            own[OLD] = self._score(own)
        samples = processes.gather(split(own), self.accelerator.num_processes)
        G = self.num_generations
        for i, sample in enumerate(samples):
            self.shelf[f"{self._generation}:{i // G}", i % G] = sample
        assert self._rewards_RF is not None  # _calculate_rewards has run
        rewards_RF = self._rewards_RF.float().cpu()
        rewards_R = (rewards_RF * self.reward_weights.cpu()).nansum(dim=1)
        rewards_R[rewards_RF.isnan().all(dim=1)] = torch.nan
        if self.args.run_folder:
            asked = processes.gather(
                [line["prompt"] for line in prompts], self.accelerator.num_processes
            )
            if self.record:
                self.record.sampled(asked, samples, rewards_R.tolist())
        return samples, rewards_R.tolist()

    def _score(self, batch: Batch) -> Tensor:
        """Old log-probabilities, which TRL spares when it expects to train on all rows at once."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        with torch.no_grad():
            scored = self._get_per_token_logps_and_entropies(
                self.model,
                ids,
                mask,
                batch["completion_ids"].size(1),
                self.args.per_device_train_batch_size,
            )
        logps: Tensor = scored[0]
        return logps

    def _more_prompts(self, refill: int) -> list[dict[str, Any]]:
        """This process's part of a further generation: prompts drawn anew from the dataset."""
        size = len(self.train_dataset)
        G, together = self.num_generations, self.accelerator.num_processes
        wanted = self.args.generation_batch_size // G
        rng = rng_for(self.args.seed, "refill", self.state.global_step, refill)
        chosen = rng.choice(size, wanted, replace=size < wanted)
        repeated = [int(i) for i in chosen for _ in range(G)]
        share = len(repeated) // together
        start = self.accelerator.process_index * share
        return [dict(self.train_dataset[i]) for i in repeated[start : start + share]]

    def _tell(self, decision: Decision, refills: int) -> None:
        """Forget the samples nobody needs any more, and log what was decided."""
        needed = decision.waiting | {(row.group, row.index) for row in decision.rows}
        self.shelf = {key: sample for key, sample in self.shelf.items() if key in needed}
        for name, value in {**decision.numbers, "refills": float(refills)}.items():
            self._metrics["train"][f"poise/{name}"].append(value)

    # -- a decision -> this process's passes ---------------------------------------------------

    def _execute(self, decision: Decision) -> list[Batch]:
        rows = decision.rows
        samples = [self.shelf[row.group, row.index] for row in rows]
        lengths_R = [len(s.prompt_S) + len(s.completion_T) for s in samples]
        passes = self.args.gradient_accumulation_steps
        batches, largest = [], 0
        for s, step in enumerate(decision.plan.steps):
            cells = lay_out(step, lengths_R, passes, self.accelerator.num_processes)
            largest = max(largest, *(len(cell) for line in cells for cell in line))
            now = self.on_policy(decision, s)
            for line in cells:
                batches.append(self._pass(line, step, rows, samples, now))
        self._metrics["train"]["poise/largest_pass"].append(float(largest))
        return batches

    def on_policy(self, decision: Decision, step: int) -> bool:
        """Whether the step's rows were sampled by the weights it is taken from, all of them."""
        rows = (decision.rows[i] for i in decision.plan.steps[step])
        once = self.num_iterations == 1
        return once and step == 0 and all(row.born > self._moved for row in rows)

    def _pass(
        self,
        line: list[list[int]],
        step: tuple[int, ...],
        rows: tuple[Row, ...],
        samples: list[Sample],
        on_policy: bool,
    ) -> Batch:
        """One pass of a step. Processes that have fewer rows than others, or none, are filled up
        with one that is masked out: TRL gathers numbers by row, and all take part in a gradient."""
        own, size = line[self.accelerator.process_index], max(1, *map(len, line))
        filler = min(step, key=lambda i: (len(samples[i].completion_T), i))
        shown = own + [filler] * (size - len(own))
        batch = join(
            [samples[i] for i in shown],
            [rows[i] for i in shown],
            pad_token=self._tokenizer.pad_token_id,
            multiple=self.pad_to_multiple_of,
            device=self.accelerator.device,
        )
        batch["completion_mask"][len(own) :] = 0
        if on_policy:
            batch.pop(OLD, None)
        tokens = [sum(rows[i].num_tokens for i in part) for part in (own, step, range(len(rows)))]
        self._average(batch, len(shown), len(step), *tokens)
        return batch

    def _average(
        self, batch: Batch, shown: int, rows: int, tokens: int, of_step: int, of_all: int
    ) -> None:
        """Leave in the batch what TRL's `_compute_loss` divides by, or what puts it right."""
        passes = self.args.gradient_accumulation_steps
        places = passes * self.accelerator.num_processes
        own = self.args.denominator == "trl"
        # TRL multiplies the count by passes / steps_per_generation: undo it
        count = of_all if own else of_step * self.args.steps_per_generation / passes
        device = self.accelerator.device
        batch["num_items_in_batch"] = torch.tensor(float(count), device=device)
        if own or self.args.loss_type in BY_TOKENS:
            return
        by_tokens = self.args.loss_type == "bnpo"
        share = tokens / max(of_step, 1) if by_tokens else shown / rows
        batch[SCALE] = share * places
