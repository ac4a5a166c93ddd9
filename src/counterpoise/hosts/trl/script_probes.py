"""Follow held-out answers, the probes, with a trainer in a user's own script.

The answers are right and wrong responses of the model itself to the first problems of
`eval_dataset`, or those of `probe_file`. Process 0 draws them with our sampler, which has random
streams of its own, from the unwrapped model; the trainer's reward functions score them. So TRL
samples and trains exactly as it would without. What is measured, and when answers are drawn anew,
is as in the native loop (run/follow_probes.py); an iteration is a generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import render_text
from counterpoise.hosts.trl import processes
from counterpoise.hosts.trl.host import PROBE_READING_WEIGHTS
from counterpoise.hosts.trl.native_policy import check_native_forward, notify
from counterpoise.hosts.trl.rewards import combine_rewards
from counterpoise.microscope.probe_monitor import STEER, ProbeMonitor, ProbeReading
from counterpoise.microscope.probe_records import probe_metrics
from counterpoise.model.fit_memory import FittedSize, describe_prompts
from counterpoise.run.metrics import ProbeResult
from counterpoise.run.probes import (
    SAMPLES,
    ProbeSet,
    choose_answers,
    measurement_interval,
    read_answers,
)
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.collect import draw_in_batches
from counterpoise.sample.native import sample
from counterpoise.seeds import seed_for
from counterpoise.types import Ints, Prompt, Response, Row, StepResult

if TYPE_CHECKING:
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

SAMPLING_REMEDY = "lower max_completion_length, or set probe=0"


class ScriptProbes:
    """The held-out answers of one trainer: process 0 draws and measures them, all score them.

    Example:
        probes.draw_if_due(generation)            before a generation is sampled
        probes.begin_update(generation, 4)        when its four optimizer steps are planned
        probes.before_step(step, rows, result); probes.after_step()
        probes.finish().measurement               before the generation is written
    """

    def __init__(self, trainer: PoiseGRPOTrainer) -> None:
        self.trainer = trainer
        self.answers: ProbeSet | None = None
        self.seconds = 0.0  # that the latest update spent on the answers
        self._probe_result: ProbeResult | None = None  # of the latest measured update
        self._new_answers_record: dict[str, Any] | None = (
            None  # the line of probes.jsonl, if they are new
        )
        self._monitor: ProbeMonitor | None = None  # during an update that is measured
        # The latest reading. Its `iteration` is the number of optimizer steps before it, not of
        # generations: with RB a generation may pass without a step.
        self._reading: ProbeReading | None = None
        self._results: dict[int, StepResult] = {}
        self._steps_left = 0
        self._prompts_per_draw: FittedSize | None = None  # set with the first draw
        options = trainer.args
        check_native_forward(trainer, "probe", "set probe=0")
        if trainer.num_iterations > 1:
            raise PoiseError(
                f"probe follows one update of each rollout, and num_iterations="
                f"{trainer.num_iterations} makes several: set it to 1, or probe=0"
            )
        if options.probe_file:
            self.answers = read_answers(
                options.probe_file,
                trainer._tokenizer,
                self._encode_given,
                options.probe,
                options.seed,
            )
            return
        if trainer.tools or trainer.environments or trainer.rollout_func:
            raise PoiseError(
                "probe draws responses without tools, environments and rollout_func: give answers "
                "in probe_file"
            )
        self.problems = self._heldout_problems()

    # -- drawing -------------------------------------------------------------------------------

    def draw_if_due(self, generation: int) -> None:
        """Draw the answers that a generation follows, if they are missing or old.

        All processes call it: each scores its share of the responses.
        """
        options, answers = self.trainer.args, self.answers
        if generation % self._interval and options.credit_weights not in PROBE_READING_WEIGHTS:
            return
        if answers is None or answers.is_due(generation, options.probe_refresh):
            self.answers = self._draw(generation)

    @property
    def _interval(self) -> int:
        """Generations between two measurements."""
        options, answers = self.trainer.args, self.answers
        if options.probe_every:
            return options.probe_every
        device, rollouts = self.trainer.accelerator.device, options.generation_batch_size
        if answers and answers.from_file:
            return measurement_interval(device, len(answers.answers), rollouts)
        return measurement_interval(device, options.probe, rollouts, options.probe_refresh)

    def steering_rows(self) -> list[Row]:
        """The answers that credit may read: those of the steering half."""
        answers = self.answers.answers if self.answers else ()
        return [answer.row for answer in answers if answer.half == STEER]

    def written_answers(self) -> ProbeSet | None:
        """The answers for a checkpoint.

        New answers in an unfinished generation have no line in probes.jsonl yet. They get since=0,
        so that the resumed run writes it.
        """
        is_unfinished = self._new_answers_record is not None and self._monitor is not None
        return replace(self.answers, since=0) if self.answers and is_unfinished else self.answers

    def _heldout_problems(self) -> list[dict[str, Any]]:
        """The first rows of eval_dataset, of which each gives a right and a wrong answer."""
        dataset: Any = self.trainer.eval_dataset
        if isinstance(dataset, dict):
            dataset = next(iter(dataset.values()), None)
        rows: Iterable[Mapping[str, Any]] = dataset if dataset is not None else ()
        problems = [dict(row) for row in islice(rows, -(-self.trainer.args.probe // 2))]
        if not problems:
            raise PoiseError(
                "probe needs held-out problems: give eval_dataset, or answers in probe_file"
            )
        return problems

    def _draw(self, generation: int) -> ProbeSet:
        trainer, seed = self.trainer, self.trainer.args.seed
        texts = [render_text(row["prompt"], "eval_dataset") for row in self.problems]
        prompts = [Prompt(f"heldout/{i}", text, "") for i, text in enumerate(texts)]
        token_ids = trainer._tokenize_prompts([row["prompt"] for row in self.problems])[0]
        encoded = [
            (prompt, np.array(ids, dtype=np.int32))
            for prompt, ids in zip(prompts, token_ids, strict=True)
        ]
        seeds_PG = [
            [seed_for(seed, "probe", generation, p * SAMPLES + g) for g in range(SAMPLES)]
            for p in range(len(prompts))
        ]
        responses_PG = processes.decide_on_first_process(
            lambda: self._sample([tokens for _, tokens in encoded], seeds_PG),
            trainer.accelerator.process_index,
            trainer.accelerator.num_processes,
        )
        responses = [response for responses_G in responses_PG for response in responses_G]
        rewards = self._score(responses)
        groups = build_groups(encoded, responses_PG, rewards, generation)
        return choose_answers(groups, trainer.args.probe, seed, self.answers)

    def _sample(
        self, prompts: Sequence[Ints], seeds_PG: Sequence[Sequence[int]]
    ) -> list[list[Response]]:
        trainer = self.trainer
        options = SampleConfig(
            max_new_tokens=trainer.max_completion_length,
            temperature=trainer.temperature,
            top_p=trainer.top_p,
            top_k=max(0, trainer.top_k or 0),
        )
        if self._prompts_per_draw is None:
            self._prompts_per_draw = FittedSize(
                len(prompts), describe=describe_prompts, notify=notify
            )
        model = trainer.policy.model
        was_training = model.training
        model.eval()  # dropout would draw random numbers that TRL's sampler needs
        try:
            return draw_in_batches(
                lambda batch: sample(trainer.policy, prompts[batch], seeds_PG[batch], options),
                len(prompts),
                self._prompts_per_draw,
                SAMPLING_REMEDY,
            )
        finally:
            model.train(was_training)

    def _score(self, responses: Sequence[Response]) -> list[float]:
        """The rewards of the responses by the trainer's functions; each process scores a share."""
        trainer = self.trainer
        examples = [row for row in self.problems for _ in range(SAMPLES)]
        share = -(-len(responses) // trainer.accelerator.num_processes)
        first_row = trainer.accelerator.process_index * share
        # All shares are equally long, as TRL gathers them: the last may repeat a row.
        own_rows = [min(row, len(responses) - 1) for row in range(first_row, first_row + share)]
        token_ids = [responses[row].tokens.tolist() for row in own_rows]
        contents = trainer.processing_class.batch_decode(token_ids, skip_special_tokens=True)
        completions = [
            content
            if isinstance(examples[row]["prompt"], str)
            else [{"role": "assistant", "content": content}]
            for row, content in zip(own_rows, contents, strict=True)
        ]
        inputs = [examples[row] for row in own_rows]
        prompts = [example["prompt"] for example in inputs]
        rewards_RF = trainer._calculate_rewards(inputs, prompts, completions, token_ids)
        # What reward functions log about held-out answers is not of the coming generation.
        trainer._pending_extra_logs.clear()
        trainer._pending_metrics.clear()
        return combine_rewards(rewards_RF, trainer.reward_weights)[: len(responses)]

    def _encode_given(self, prompt: Prompt) -> Ints:
        """A prompt of `probe_file` as TRL tokenizes one: a text, or the messages of a chat."""
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        (token_ids,) = self.trainer._tokenize_prompts([messages or prompt.problem])[0]
        return np.array(token_ids, dtype=np.int32)

    # -- an update -----------------------------------------------------------------------------

    @property
    def is_looking(self) -> bool:
        """Whether the update that is being taken is measured."""
        return self._monitor is not None

    def begin_update(self, generation: int, num_steps: int) -> None:
        """Prepare to measure an update of `num_steps` optimizer steps, if that is due."""
        self._monitor = self._probe_result = self._new_answers_record = None
        self._results, self._steps_left = {}, num_steps
        trainer, answers = self.trainer, self.answers
        if generation % self._interval or answers is None or not answers.answers:
            return
        if not answers.since:
            self.answers = answers = replace(answers, since=generation)
            self._new_answers_record, self._reading = answers.to_record(), None
        reading = self._reading
        is_current = reading is not None and reading.iteration == trainer.state.global_step
        self._monitor = ProbeMonitor(
            answers.answers,
            trainer.temperature,
            trainer.micro_batch,
            reading=reading.scores if reading is not None and is_current else None,
        )

    def before_step(self, step: int, rows: Sequence[Row], result: StepResult) -> None:
        """Keep what a step computed; `rows` are those of the planned step, in its order."""
        assert self._monitor is not None, "begin_update() has found that a measurement is due"
        self._results[step] = replace(result, hidden=())
        self._monitor.at(step).before_update(self.trainer.policy, rows, result)

    def after_step(self) -> dict[str, Any]:
        """Measure the answers after the last step; returns what TRL's log shows then."""
        self._steps_left -= 1
        if self._steps_left or self._monitor is None:
            return {}
        return self._measure()

    def finish(self) -> ProbeResult | None:
        """What the latest update did to the answers; None if it was not measured."""
        if self._monitor is not None:  # a run that ended within a generation
            self._measure()
        probe_result, self._probe_result = self._probe_result, None
        return probe_result

    def _measure(self) -> dict[str, Any]:
        monitor, self._monitor = self._monitor, None
        assert monitor is not None
        if not self.trainer.accelerator.is_main_process:
            return {}
        measurement = monitor.finish(self.trainer.policy)
        if monitor.reading is not None:
            self._reading = ProbeReading(self.trainer.state.global_step, monitor.reading)
        self.seconds = monitor.stopwatch.seconds
        metrics = probe_metrics(monitor.answers, measurement, self._results)
        self._probe_result = ProbeResult(monitor.answers, measurement, self._new_answers_record)
        return metrics
