"""TRL's trainer bound to a run file: its prompts, its seeds, its last iteration.

An iteration is one generation, as in the native engine: with reward balance on, several may pass
before an update. Iteration n has the prompts of `pick_prompts`, so two engines with one seed get
the same prompts; their responses differ, since TRL samples with torch's own random numbers. Those
are seeded for every iteration, so that a resumed run continues exactly as it would have.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback

from counterpoise.config import RunConfig
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import processes
from counterpoise.hosts.trl.padding import (
    OLD_LOGPROBS,
    SAMPLER_LOGPROBS,
    TrlBatch,
    UnpaddedRollout,
)
from counterpoise.hosts.trl.run_recorder import RecordedRun, RunRecorder
from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer
from counterpoise.loop import MAX_SKIPPED_STEPS
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.model.templates import TEMPLATES, prompt_messages, prompt_text
from counterpoise.run import follow_probes
from counterpoise.run.state import RunState
from counterpoise.sample.choose_prompts import EncodedPrompt, pick_prompts
from counterpoise.seeds import seed_for
from counterpoise.types import Prompt
from counterpoise.verify.plugin_reward import training_context
from counterpoise.verify.scores import Scores, are_binary, score_responses


class IterationsExhausted(Exception):  # noqa: N818  # not an error: the last iteration is over
    """The run's iterations are over, and the waiting rows make no balanced batch."""


class VerifierReward:
    """The run's verifier as TRL's reward function; keeps the latest scores and their seconds."""

    __name__ = "reward"  # TRL logs the reward under this name

    def __init__(self, run: RecordedRun, state: RunState) -> None:
        self.run, self.state = run, state
        self.prompts = {prompt.id: prompt for prompt, _ in run.train_set}
        self.scores = Scores([])
        self.seconds = 0.0

    def __call__(
        self, completion_ids: Sequence[Sequence[int]], problem: Sequence[str], **_: Any
    ) -> list[float]:
        start_time = time.perf_counter()
        prompts = [self.prompts[prompt_id] for prompt_id in problem]
        # Not TRL's trainer_state, which counts from 0 again after a resume.
        context = training_context(self.run.config, self.state.iteration, completion_ids)
        self.scores = score_responses(
            self.run.verifier, self.state.policy.decode_rows(completion_ids), prompts, context
        )
        self.seconds = time.perf_counter() - start_time
        return self.scores.rewards


class RunTrainer(PoiseGRPOTrainer):
    """The trainer of `--engine trl`: a PoiseGRPOTrainer with the run file's prompts and recorder.

    Example:
        RunTrainer(config, prompts, recorder, model=policy.model, reward_funcs=reward, ...).train()
    """

    def __init__(
        self,
        run: RunConfig,
        train_set: Sequence[EncodedPrompt],
        recorder: RunRecorder,
        **trainer_arguments: Any,
    ) -> None:
        super().__init__(**trainer_arguments)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise PoiseError(
                "--engine trl needs the whole model on each process: launch it without FSDP and "
                "DeepSpeed, or train with --engine verl"
            )
        self.run, self.train_set = run, train_set
        # The recorder is also the monitor: TRL's adapter calls it before every step.
        self.recorder = self.monitor = recorder
        recorder.trainer = self
        self.add_callback(_StepCallbacks(self))
        self.skipped_in_a_row = 0

    def resume_after(self, iteration: int, rollouts_by_key: dict[Any, UnpaddedRollout]) -> None:
        """Continue after `iteration`, with the rollouts that wait for a balanced batch."""
        self._generation = iteration
        self.rollouts_by_key = dict(rollouts_by_key)

    # -- overrides of the adapter's own methods ------------------------------------------------

    @cached_property
    def policy(self) -> Policy:
        return self.recorder.state.policy

    @cached_property
    def micro_batch(self) -> FittedSize:
        return self.recorder.state.micro_batch

    def _reader(self) -> PolicyReader | None:
        state, run = self.recorder.state, self.run
        temperature, seed = run.sample.temperature, run.loop.seed
        return PolicyReader(
            state.policy,
            temperature,
            self.micro_batch,
            self._generation,
            seed,
            steering_rows=follow_probes.steering_rows(state, run),
        )

    def _make_probes(self) -> None:
        """None: the recorder follows the run's probes."""

    def _next_prompts(
        self, generation_batch: list[dict[str, Any]], refills: int
    ) -> list[dict[str, Any]]:
        self.recorder.close_iteration()  # still open if the previous one had no update
        if self._generation == self.run.loop.iterations:
            raise IterationsExhausted
        iteration, process = self._generation + 1, self.accelerator.process_index
        self.recorder.begin_iteration(iteration)
        # By process too, so that processes do not share their random numbers.
        seed = seed_for(self.run.loop.seed, "trl", iteration, process)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # vLLM draws the seeds of requests from it
        examples = [
            dataset_row(prompt, self.recorder.state.policy)
            for prompt, _ in pick_prompts(self.train_set, self.run, iteration)
            for _ in range(self.num_generations)
        ]
        rows_per_process = len(examples) // self.accelerator.num_processes
        return examples[process * rows_per_process : (process + 1) * rows_per_process]

    def _generate_and_score_completions(self, inputs: Any) -> TrlBatch:
        batch: TrlBatch = super()._generate_and_score_completions(inputs)
        # transformers reports none, and samples with this model: rollouts/ stores the trainer's.
        has_logprobs = OLD_LOGPROBS in batch or SAMPLER_LOGPROBS in batch
        if self.run.store.rollouts and not has_logprobs:
            batch[OLD_LOGPROBS] = self._score_rollouts(batch)
        return batch

    def _generate_all(
        self, prompts: list[dict[str, Any]]
    ) -> tuple[list[UnpaddedRollout], list[float]]:
        samples, rewards_R = super()._generate_all(prompts)
        (reward,) = self.reward_funcs
        scores_by_process = processes.gather_lists([reward.scores], self.accelerator.num_processes)
        scores = reduce(Scores.concatenate, scores_by_process)
        # The rewards as TRL gathered them, in float32: advantages are computed from these.
        graded = scores.graded or not are_binary(rewards_R)
        scores = replace(scores, rewards=rewards_R, graded=graded)
        encoded = pick_prompts(self.train_set, self.run, self._generation)
        self._check_prompt_tokens(samples, encoded)
        self.recorder.record_samples(encoded, samples, scores, reward.seconds)
        return samples, rewards_R

    def _check_prompt_tokens(
        self, samples: Sequence[UnpaddedRollout], encoded: Sequence[EncodedPrompt]
    ) -> None:
        """Raise unless TRL, which renders prompts itself, gets the native engine's tokens."""
        for sample, (prompt, tokens) in zip(samples[:: self.num_generations], encoded, strict=True):
            if sample.prompt_S.tolist() != tokens.tolist():
                raise PoiseError(
                    f"TRL encodes prompt '{prompt.id}' differently from the native engine: "
                    "set model.template=boxed, or train with --engine native"
                )

    # -- an optimizer step ---------------------------------------------------------------------

    def skip_reason(self) -> str:
        """Why the optimizer must skip this step, as the native engine does; "" if it must not.

        A gradient of None makes torch's optimizers leave a weight and its moments unchanged.
        """
        assert self.decision is not None
        steps_taken = self._step // self.args.gradient_accumulation_steps  # including this one
        step = (steps_taken - 1) % self.args.optimizer_steps
        rows = [self.decision.rows[i] for i in self.decision.plan.steps[step]]
        if not any(row.has_loss(all_rows=self.run.update.trains_all_rows) for row in rows):
            return "no signal"
        grads: list[Tensor] = [
            parameter.grad for parameter in self.model.parameters() if parameter.grad is not None
        ]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        return "" if bool(torch.isfinite(norm)) else "not finite"


def dataset_row(prompt: Prompt, policy: Policy) -> dict[str, Any]:
    """A row of TRL's dataset: the prompt as a conversation or as the text of `Policy.encode`.

    The problem's id lets the reward function find the answer.
    """
    write_prompt = prompt_messages if TEMPLATES[policy.template].chat else prompt_text
    return {"prompt": write_prompt(policy.template, prompt), "problem": prompt.id}


class _StepCallbacks(TrainerCallback):
    """What TRL's loop calls around an optimizer step, in the order of the methods."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        reason = trainer.skip_reason()
        trainer.recorder.skip_reason = reason
        if reason:
            trainer.model.zero_grad(set_to_none=True)
        # A step without signal says nothing about divergence, so it neither counts nor resets.
        if reason != "no signal":
            trainer.skipped_in_a_row = trainer.skipped_in_a_row + 1 if reason else 0
        if trainer.skipped_in_a_row >= MAX_SKIPPED_STEPS:
            raise PoiseError(
                f"{MAX_SKIPPED_STEPS} optimizer steps in a row had a gradient that is not finite: "
                "start a new run with a lower update.lr; what the run wrote before is intact"
            )

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Count the steps that were not skipped: the learning rate of the next depends on it."""
        recorder = self.trainer.recorder
        recorder.state.optimizer.steps += not recorder.skip_reason

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.recorder.after_step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in (logs or {}):
            self.trainer.recorder.record_log(logs)
