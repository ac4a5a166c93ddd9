"""Record a trainer in a user's own script into `run_folder`, for `poise report` and `poise look`.

    imported.json         TRL's version, and the options that pages show
    plans.jsonl           which rollouts shared an optimizer step
    metrics.jsonl         a line for each generation; rollouts/ a line for each rollout
    tokens/, pushes/      the optimizer steps that the monitor measured; vocabulary.json
    probes.jsonl, probes/ held-out answers, if any are followed, with probe_rows/, probe_pushes/

An iteration of the folder is a generation: with RB several may pass before an update. Process 0
writes it when the next begins, before a checkpoint, or at the end. A resumed run first removes what
was recorded after its checkpoint. If the checkpoint lies within a generation, that iteration keeps
only the steps before the checkpoint (recorded_folder.py), and the next is sampled anew. There is no
config.toml, because the options are TRL's: `poise train --resume` refuses the folder.

Loss, entropy and the like are those that TRL logs, so with logging_steps=10 they are means over ten
optimizer steps, and stand in the iteration in which they were logged. TRL logs the gradient norm
and the learning rate of the last of these steps only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoise.config import StoreConfig
from counterpoise.hosts.importing.formats import render_text
from counterpoise.hosts.importing.text_rollouts import name_prompt
from counterpoise.hosts.recorded_folder import (
    remove_unfinished,
    restore_unfinished,
    start_folder,
    unfinished_folder,
    unfinished_iteration,
)
from counterpoise.hosts.recorded_steps import observed_metrics, observed_step
from counterpoise.hosts.trl.monitor import AGGREGATION_OF_LOSS, SURROGATE_OF_LEVEL
from counterpoise.hosts.trl.padding import SAMPLER_LOGPROBS, UnpaddedRollout
from counterpoise.hosts.trl.planner import Decision, to_rollout
from counterpoise.hosts.trl.recorder import OpenIteration
from counterpoise.hosts.trl.vllm_engine import cuts_the_distribution
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.run import metrics
from counterpoise.run.write_iteration import write_iteration
from counterpoise.store.folder import SCHEMA, RunFolder
from counterpoise.types import Rollout, StepResult
from counterpoise.verify.scores import Scores, are_binary

if TYPE_CHECKING:
    from counterpoise.hosts.trl.observed_trainer import ObservedTrainer
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

# Our names of numbers that TRL logs.
LOGGED_BY_TRL = {
    "grad_norm": "grad_norm", "loss": "loss", "clipped_share": "clip_ratio/region_mean",
    "entropy": "entropy", "kl": "kl", "lr": "learning_rate",
}  # fmt: skip
OPTIMIZERS = ("adamw", "sgd")  # of update.optimizer; TRL's names contain them: paged_adamw_8bit
RESUME_HINT = "to continue the run in it, call trainer.train(resume_from_checkpoint=...)"
# For a step of the plan that the monitor did not measure.
UNSEEN_RESULT = observed_step(
    (), advantages=(), logprobs=(), old_logprobs=(), tokens=0, skipped="not seen"
)


@dataclass(slots=True, eq=False)
class ScriptIteration(OpenIteration):
    """An open generation with the measurements of its steps so far."""

    results: dict[int, StepResult] = field(default_factory=dict)  # by step of the plan
    measurements: list[StepMeasurement] = field(default_factory=list)
    steps_taken: int = 0
    # by name of LOGGED_BY_TRL, of the steps that TRL logged
    logged_numbers: dict[str, list[float]] = field(default_factory=dict)
    not_finite_steps: int = 0  # of these: loss or gradient was no number

    def drop_untaken_steps(self) -> None:
        """Leave out the steps that a run which ended within a generation did not take."""
        if self.decision is None or self.steps_taken >= len(self.decision.plan.steps):
            return
        taken_steps = self.decision.plan.steps[: self.steps_taken]
        kept_rows = sorted(row for step in taken_steps for row in step)
        new_index = {row: position for position, row in enumerate(kept_rows)}
        self.batch = [self.batch[row] for row in kept_rows]
        self.results = {
            step: replace(result, rows=tuple(new_index[row] for row in result.rows))
            for step, result in self.results.items()
            if step < len(taken_steps)
        }
        if not taken_steps:
            self.decision = None
            return
        steps = tuple(tuple(new_index[row] for row in step) for step in taken_steps)
        plan = replace(self.decision.plan, steps=steps)
        rows = tuple(self.decision.rows[row] for row in kept_rows)
        self.decision = replace(self.decision, rows=rows, plan=plan)


class ScriptRecorder:
    """Writes the folder of one trainer; exists on process 0 only."""

    def __init__(
        self,
        trainer: PoiseGRPOTrainer | ObservedTrainer,
        path: Path,
        describe: Callable[[Any], dict[str, Any]],  # trainer -> the content of imported.json
    ) -> None:
        self.trainer, self.folder, self.describe = trainer, RunFolder(path), describe
        self.iteration: ScriptIteration | None = None

    # -- a run, in the order of its calls ------------------------------------------------------

    def start(self) -> None:
        """Make the folder, or rewind it to the checkpoint that the trainer resumed from."""
        trainer = self.trainer
        self.iteration = None  # still open if a `train()` before was interrupted
        steps_taken = trainer.state.global_step
        finished = trainer._generation if steps_taken > 0 else None
        open_number = unfinished_iteration(self.folder, steps_taken) if steps_taken > 0 else None
        if open_number is not None:
            finished = open_number - 1
        start_folder(self.folder, self.describe(trainer), finished, RESUME_HINT)
        if open_number is not None:
            restore_unfinished(self.folder, steps_taken)
        if trainer.monitor or trainer.records_tokens:
            self.folder.write_vocabulary(trainer.policy.vocabulary_texts())

    def generation_of_step(self, step: int) -> int | None:
        """The number of the generation that optimizer step `step` (1 is the first) belongs to.

        None if the folder has no record of the step.
        """
        open_number = unfinished_iteration(self.folder, step)
        if open_number is not None or not step:
            return open_number
        steps_recorded = 0
        for record in self.folder.read("metrics"):
            steps_recorded += record["steps"]
            if steps_recorded >= step:
                return int(record["iteration"])
        return None

    def begin_iteration(self, number: int) -> None:
        self.close_iteration()
        buffer = self.trainer.planner.buffer
        self.iteration = ScriptIteration(number, list(buffer.state()) if buffer else [])

    def record_samples(
        self, prompts: Sequence[Any], samples: Sequence[UnpaddedRollout], rewards_R: Sequence[float]
    ) -> None:
        """Keep what was sampled; `prompts` has one entry for each rollout."""
        assert self.iteration is not None
        self.iteration.clock.lap("sample")
        texts = self.trainer._tokenizer.batch_decode(
            [sample.completion_T.tolist() for sample in samples], skip_special_tokens=True
        )
        rollouts = [
            self._full_rollout(sample, prompt, text, reward)
            for sample, prompt, text, reward in zip(samples, prompts, texts, rewards_R, strict=True)
        ]
        num_groups = len(rollouts) // self.trainer.num_generations
        self.iteration.set_groups(rollouts, [str(g) for g in range(num_groups)])

    def record_decision(self, decision: Decision) -> None:
        """Keep the rows that are trained next, while the trainer still has their rollouts."""
        assert self.iteration is not None
        self.iteration.clock.lap("compose")
        self.iteration.decision = decision
        for row in decision.rows:
            sample = self.trainer.rollouts_by_key[row.name]
            rollout = _bare_rollout(sample, self.trainer.args)
            self.iteration.batch.append(
                replace(row, rollout=rollout, trainer_logprobs_T=sample.old_logprobs)
            )

    def record_result(self, step: int, result: StepResult) -> None:
        """Keep what a step computed."""
        assert self.iteration is not None
        assert self.iteration.decision is not None
        # The monitor numbers rows within the step; the folder numbers them within the batch.
        planned_rows = self.iteration.decision.plan.steps[step]
        rows = tuple(planned_rows[i] for i in result.rows)
        self.iteration.results[step] = replace(result, rows=rows, hidden=())

    def record_measurement(self, step: int, measurement: StepMeasurement) -> None:
        """Keep the measurement of a step; the folder too numbers its rows within the step."""
        assert self.iteration is not None
        self.iteration.measurements.append(replace(measurement, step=step))

    def count_step(self) -> None:
        if self.iteration is not None:
            self.iteration.steps_taken += 1

    def record_log(self, logs: Mapping[str, Any]) -> None:
        if self.iteration is None:
            return
        logged = {
            name: float(logs[trl_name])
            for name, trl_name in LOGGED_BY_TRL.items()
            if logs.get(trl_name) is not None
        }
        self.iteration.not_finite_steps += not np.isfinite(list(logged.values())).all()
        for name, number in logged.items():
            if np.isfinite(number):
                self.iteration.logged_numbers.setdefault(name, []).append(number)

    def write_for_checkpoint(self) -> None:
        """Write what a run that resumes from the checkpoint needs, whole, to the disk."""
        steps = self.trainer.state.global_step
        if self.trainer._step % self.trainer.args.steps_per_generation == 0:
            self.close_iteration()  # its last optimizer step is done
        elif self.iteration is not None and self.iteration.groups:
            part = unfinished_folder(self.folder, steps)
            # What is there for this step or a later one is left from before a resume.
            remove_unfinished(self.folder, keep=[n for n in self._saved_steps() if n < steps])
            with self.folder.explain_write_errors(part.path.name):
                part.path.mkdir(parents=True, exist_ok=True)
            iteration = copy(self.iteration)  # the generation goes on
            iteration.clock = deepcopy(iteration.clock)
            self._write(iteration, part, probe_result=None)
            part.sync()
        self.folder.sync()

    def remove_outdated_parts(self) -> None:
        """Remove what was written of open generations for checkpoints that TRL has removed."""
        remove_unfinished(self.folder, keep=self._saved_steps())

    def _saved_steps(self) -> list[int]:
        """The optimizer steps after which there is a checkpoint."""
        names = [path.name for path in Path(self.trainer.args.output_dir).glob("checkpoint-*")]
        numbers = [name.removeprefix("checkpoint-") for name in names]
        return [int(number) for number in numbers if number.isdecimal()]

    def close_iteration(self) -> None:
        """Write the open generation, if any."""
        iteration, self.iteration = self.iteration, None
        if iteration is None or not iteration.groups:
            return
        probes = self.trainer.probes
        probe_result = probes.finish() if probes else None
        self._write(iteration, self.folder, probe_result)

    def _write(
        self,
        iteration: ScriptIteration,
        folder: RunFolder,
        probe_result: metrics.ProbeResult | None,
    ) -> None:
        """Write an iteration with the steps that were taken; it cannot be used afterwards."""
        iteration.clock.lap("update" if iteration.decision else "compose")
        iteration.drop_untaken_steps()
        if self.trainer.probes and probe_result:
            iteration.clock.split("update", "probe", self.trainer.probes.seconds)
        planner = self.trainer.planner
        steps = range(len(iteration.decision.plan.steps)) if iteration.decision else ()
        rewards = [rollout.reward for group in iteration.groups for rollout in group.rollouts]
        record = iteration.finish(
            scores=Scores(rewards, graded=not are_binary(rewards)),
            credited=planner.credited_groups,
            results=[iteration.results.get(step, UNSEEN_RESULT) for step in steps],
            measurements=iteration.measurements,
            still_waiting=list(planner.buffer.state()) if planner.buffer else [],
            max_age=planner.max_age,
        )
        record = replace(record, probes=probe_result)
        store = StoreConfig(rollouts=True, tokens=True, model=False, report=True)
        write_iteration(folder, record, self._metrics_line(iteration, record), store)

    def _metrics_line(
        self, iteration: ScriptIteration, record: metrics.IterationResult
    ) -> dict[str, Any]:
        """The line of metrics.jsonl: ours where the monitor measured a number, else TRL's.

        The gradient norm is always TRL's.
        """
        buffer = self.trainer.planner.buffer
        line = observed_metrics(metrics.metrics_record(record, buffer, iteration.clock))
        line["grad_norm"] = None
        for name, numbers in iteration.logged_numbers.items():
            if line[name] is None:
                # As everywhere in metrics.jsonl, the learning rate is that of the last step.
                line[name] = numbers[-1] if name == "lr" else float(np.mean(numbers))
        return line | {
            "steps": iteration.steps_taken,
            "skipped_steps": 0,
            "not_finite_steps": iteration.not_finite_steps,
        }

    def _full_rollout(
        self, sample: UnpaddedRollout, prompt: Any, text: str, reward: float
    ) -> Rollout:
        return replace(
            _bare_rollout(sample, self.trainer.args, or_old_logprobs=True),
            prompt_id=name_prompt("trl", prompt),
            prompt=render_text(prompt, "prompt"),
            response=text,
            reward=reward,  # NaN: no reward function scored it
            finished=int(sample.completion_T[-1]) in self.trainer.eos_token_ids,
        )


def describe_planned_run(trainer: PoiseGRPOTrainer) -> dict[str, Any]:
    """The content of imported.json for a trainer of ours."""
    options = trainer.args
    notes = [f"composer={options.composer}", f"tau={options.tau:g}", f"credit={options.credit}"]
    if options.credit_weights != "uniform":
        notes.append(f"credit_weights={options.credit_weights}")
    description = describe_run(trainer, "counterpoise.hosts.trl", ", ".join(notes))
    description["options"]["balance"] = {
        "tau": options.tau, "target": options.balance_target, "max_age": options.max_age,
    }  # fmt: skip
    return description


def describe_run(
    trainer: PoiseGRPOTrainer | ObservedTrainer, recorded_by: str, note: str
) -> dict[str, Any]:
    """The content of imported.json, with the options that pages and `poise replay` read."""
    options = trainer.args
    notes = [note, *_describe_logs(trainer)]
    update = {
        "lr": options.learning_rate,
        "max_grad_norm": options.max_grad_norm,
        "clip_low": trainer.epsilon_low,
        "clip_high": trainer.epsilon_high,
    }
    optimizer = str(getattr(options.optim, "value", options.optim))
    if known_optimizers := [name for name in OPTIMIZERS if name in optimizer]:
        update["optimizer"] = known_optimizers[0]
    else:
        notes.append(f"TRL's optimizer is {optimizer}; poise replay would repeat steps by AdamW")
    if aggregate := AGGREGATION_OF_LOSS.get(getattr(options, "loss_type", "")):
        update["aggregate"] = aggregate
    if surrogate := SURROGATE_OF_LEVEL.get(getattr(trainer, "importance_sampling_level", "")):
        update["surrogate"] = surrogate
    return {
        "schema": SCHEMA,
        "source": f"TRL {version('trl')} with {recorded_by}",
        "tokenizer": getattr(trainer._tokenizer, "name_or_path", "") or None,
        "notes": notes,
        "options": {
            "sample": {
                "prompts": options.generation_batch_size // options.num_generations,
                "group_size": options.num_generations,
                "temperature": trainer.temperature,
                "max_new_tokens": trainer.max_completion_length,
            },
            "batch": {"steps": trainer.optimizer_steps},
            "update": update,
        },
    }


def _describe_logs(trainer: PoiseGRPOTrainer | ObservedTrainer) -> list[str]:
    """A note on what TRL's numbers average over, if that is more than one optimizer step."""
    steps, strategy = trainer.state.logging_steps, trainer.args.logging_strategy
    spans = {"steps": f"logging_steps={steps:g} optimizer steps", "epoch": "an epoch"}
    if strategy not in spans or (strategy == "steps" and steps <= 1):
        return []
    return [
        f"loss, entropy, clipped share and KL are TRL's logs, means over {spans[strategy]}; "
        "gradient norm and learning rate are those of the last step before a log"
    ]


def _bare_rollout(
    sample: UnpaddedRollout, options: Any, *, or_old_logprobs: bool = False
) -> Rollout:
    """A rollout without texts, with the sampler's log-probabilities.

    TRL only has those if it samples with vLLM. Otherwise they are NaN, or with `or_old_logprobs`
    the trainer's old ones. They are NaN as well if tokens were left out before sampling: then
    vLLM's are not those of the full distribution.
    """
    rollout = to_rollout(sample)
    sampled_logprobs = sample.policy_values(SAMPLER_LOGPROBS)
    if sampled_logprobs is None and or_old_logprobs:
        return rollout
    is_cut = cuts_the_distribution(options.top_p, options.top_k) or options.min_p
    if sampled_logprobs is None or is_cut:
        sampled_logprobs = np.full(len(rollout.response_tokens), np.nan, np.float32)
    return replace(rollout, sampled_logprobs=sampled_logprobs)


def recorder_callback(recorder: ScriptRecorder) -> Any:
    """Call the recorder at the points of TRL's training loop that it needs."""
    from transformers import TrainerCallback

    class RecorderCallback(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            recorder.start()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            recorder.count_step()

        def on_log(self, *args: Any, logs: Any = None, **kwargs: Any) -> None:
            recorder.record_log(logs or {})

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            recorder.close_iteration()
            recorder.folder.sync()

    return RecorderCallback()
