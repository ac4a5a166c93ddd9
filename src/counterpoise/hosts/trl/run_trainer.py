"""TRL's trainer bound to a run file: its prompts, its seeds, its last iteration.

An iteration is one generation, as in the native engine: with reward balance on, several may pass
before an update. Iteration n has the prompts of `rounds.pick_prompts`, so two engines with one seed
are asked the same; what they answer differs, since TRL draws from torch's own random numbers. Those
are seeded anew for every iteration: a run that is taken up again goes on as it would have.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from counterpoise.config import RunConfig
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import processes
from counterpoise.hosts.trl.run_recorder import Recorder
from counterpoise.hosts.trl.samples import Batch, Sample
from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer
from counterpoise.loop import MAX_SKIPPED
from counterpoise.model.load import Policy
from counterpoise.model.templates import TEMPLATES, fill_template
from counterpoise.sample.collect import EncodedPrompt, pick_prompts
from counterpoise.seeds import seed_for
from counterpoise.types import Prompt
from counterpoise.verify.scores import Scores, Verifier, verified


class SampledEnough(Exception):  # noqa: N818  # no error: the last iteration is over
    """The run's iterations are over, and what waits makes no balanced batch."""


class Judge:
    """The run's verifier as TRL's reward function; keeps what went wrong and how long it took."""

    __name__ = "reward"  # TRL logs it by this

    def __init__(
        self, policy: Policy, verifier: Verifier, train_set: Sequence[EncodedPrompt]
    ) -> None:
        self.policy, self.verifier = policy, verifier
        self.prompts = {prompt.id: prompt for prompt, _ in train_set}
        self.scores = Scores([])
        self.seconds = 0.0

    def __call__(
        self, completion_ids: Sequence[Sequence[int]], problem: Sequence[str], **_: Any
    ) -> list[float]:
        start = time.perf_counter()
        asked = [self.prompts[name] for name in problem]
        self.scores = verified(self.verifier, self.policy.decode_rows(completion_ids), asked)
        self.seconds = time.perf_counter() - start
        return self.scores.rewards


class RunTrainer(PoiseGRPOTrainer):
    """
    Example:
        RunTrainer(config, prompts, recorder, model=policy.model, reward_funcs=judge, ...).train()
    """

    def __init__(
        self, run: RunConfig, train_set: Sequence[EncodedPrompt], recorder: Recorder, **given: Any
    ) -> None:
        super().__init__(**given)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise PoiseError(
                "--engine trl needs the whole model on each process: launch it without FSDP and "
                "DeepSpeed, or train with --engine verl"
            )
        self.run, self.train_set = run, train_set
        self.recorder = self.monitor = recorder
        recorder.trainer = self
        self.add_callback(_Bells(self))
        self.skipped_in_a_row = 0

    def take_up(self, iteration: int, shelf: dict[Any, Sample]) -> None:
        """Go on after `iteration`; the shelf holds what waits for a balanced batch."""
        self._generation = iteration
        self.shelf = dict(shelf)

    # -- what the adapter leaves open ----------------------------------------------------------

    @cached_property
    def policy(self) -> Policy:
        return self.recorder.state.policy

    def _reader(self) -> PolicyReader | None:
        state, run = self.recorder.state, self.run
        temperature, seed = run.sample.temperature, run.loop.seed
        return PolicyReader(state.policy, temperature, state.micro, self._generation, seed)

    def _next_prompts(
        self, generation_batch: list[dict[str, Any]], refills: int
    ) -> list[dict[str, Any]]:
        self.recorder.close()  # where the iteration before had no update
        if self._generation == self.run.loop.iterations:
            raise SampledEnough
        now, process = self._generation + 1, self.accelerator.process_index
        self.recorder.begin(now)
        torch.manual_seed(seed_for(self.run.loop.seed, "trl", now, process))
        asked = [
            example(prompt, self.recorder.state.policy)
            for prompt, _ in pick_prompts(self.train_set, self.run, now)
            for _ in range(self.num_generations)
        ]
        share = len(asked) // self.accelerator.num_processes
        return asked[process * share : (process + 1) * share]

    def _generate_and_score_completions(self, inputs: Any) -> Batch:
        made: Batch = super()._generate_and_score_completions(inputs)
        if self.run.store.rollouts and "old_per_token_logps" not in made:
            made["old_per_token_logps"] = self._score(made)
        return made

    def _generate_all(self, prompts: list[dict[str, Any]]) -> tuple[list[Sample], list[float]]:
        samples, rewards_R = super()._generate_all(prompts)
        (judge,) = self.reward_funcs
        own = [(judge.scores.timeouts, judge.scores.crashes)]
        faults = processes.gather(own, self.accelerator.num_processes)
        timeouts, crashes = (sum(numbers) for numbers in zip(*faults, strict=True))
        scores = Scores(rewards_R, timeouts, crashes)
        asked = pick_prompts(self.train_set, self.run, self._generation)
        self._check(samples, asked)
        self.recorder.sampled(asked, samples, scores, judge.seconds)
        return samples, rewards_R

    def _check(self, samples: Sequence[Sample], asked: Sequence[EncodedPrompt]) -> None:
        """TRL writes prompts by itself: it must come to the tokens of the native engine."""
        for sample, (prompt, tokens) in zip(samples[:: self.num_generations], asked, strict=True):
            if sample.prompt_S.tolist() != tokens.tolist():
                raise PoiseError(
                    f"TRL makes other tokens of prompt '{prompt.id}' than the native engine: "
                    "set model.template=boxed, or train with --engine native"
                )

    # -- an optimizer step ---------------------------------------------------------------------

    def skip_step(self) -> str:
        """Why the optimizer is to leave this step out, as the native engine does; "" if it is not.

        A gradient of None makes torch's optimizers leave a weight and its moments alone.
        """
        assert self.decision is not None
        taken = self._step // self.args.gradient_accumulation_steps  # this one included
        step = (taken - 1) % self.args.optimizer_steps
        rows = [self.decision.rows[i] for i in self.decision.plan.steps[step]]
        if not any(row.sign for row in rows):
            return "no signal"
        grads: list[Tensor] = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        return "" if bool(torch.isfinite(norm)) else "not finite"


def example(prompt: Prompt, policy: Policy) -> dict[str, Any]:
    """A row of TRL's dataset: a conversation, or the plain text of `Policy.encode`, and the
    problem's id, by which the judge finds the rest."""
    text = fill_template(policy.template, prompt.problem)
    chat = TEMPLATES[policy.template].chat
    return {"prompt": [{"role": "user", "content": text}] if chat else text, "problem": prompt.id}


class _Bells(TrainerCallback):
    """What TRL's loop calls around an optimizer step, in this order."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        skipped = trainer.skip_step()
        trainer.recorder.skipped = skipped
        if skipped:
            trainer.model.zero_grad(set_to_none=True)
        if skipped != "no signal":  # such a step was never tried
            trainer.skipped_in_a_row = trainer.skipped_in_a_row + 1 if skipped else 0
        if trainer.skipped_in_a_row >= MAX_SKIPPED:
            raise PoiseError(
                f"{MAX_SKIPPED} optimizer steps in a row had a gradient that is not finite: "
                "start anew with a lower update.lr; what the run wrote before is whole"
            )

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """The learning rate of the next step goes by the number of those that were taken."""
        recorder = self.trainer.recorder
        recorder.state.optimizer.steps += not recorder.skipped

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.recorder.after_update()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in (logs or {}):
            self.trainer.recorder.logged(logs)
