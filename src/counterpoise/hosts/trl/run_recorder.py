"""Record a run of `poise train --engine trl`: the same files and numbers as the native engine's.

An iteration is opened before it is sampled and closed after the log of its last optimizer step, or,
without an update, when the next one begins. TRL does not return entropies, ratios, pulls and the
microscope's tensors; so the native forward reads the rows of a step once more, just before it.
Without monitor, probes and store.tokens nothing is read, and the update's numbers are those that
TRL logs. Held-out answers are drawn and measured as in the native loop (run/follow_probes.py).
Of TRL's samplers vLLM alone returns log-probabilities: without it rollouts/ holds the trainer's,
and `sample_seconds` includes TRL's pass that computes them. Only process 0 records. Between two
evaluations, and between two draws of probes, the native sampler keeps no memory of the GPU.

Ctrl-C and SIGTERM wait for the end of an open iteration, as in the native loop: it is finished and
saved. It is enough that one process receives them, and none exits before the checkpoint exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from counterpoise.config import RunConfig
from counterpoise.credit.assign import assign
from counterpoise.hosts.trl import processes
from counterpoise.hosts.trl.monitor import StepMonitor
from counterpoise.hosts.trl.padding import SAMPLER_LOGPROBS, UnpaddedRollout
from counterpoise.hosts.trl.planner import Decision
from counterpoise.hosts.trl.recorder import OpenIteration
from counterpoise.hosts.trl.vllm_engine import cuts_the_distribution
from counterpoise.loop import FINISHING_NOTICE, make_monitor
from counterpoise.microscope.monitor import Monitor
from counterpoise.run import follow_probes, metrics
from counterpoise.run.evaluate_heldout import evaluate
from counterpoise.run.interrupts import postpone_interrupts
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import (
    RunState,
    bind_sampler,
    check_finite,
    replace_waiting_rows,
    save_state,
)
from counterpoise.run.write_iteration import write_iteration
from counterpoise.sample.choose_prompts import EncodedPrompt, pick_prompts
from counterpoise.sample.decode_graphs import release_graphs
from counterpoise.store.folder import RunFolder
from counterpoise.types import Floats, Prompt, Rollout, Row, StepResult
from counterpoise.verify.scores import Scores, Verifier

SAVING = "saving a checkpoint"
# Our name -> TRL's.
LOGGED_METRICS = {
    "loss": "loss", "grad_norm": "grad_norm", "entropy": "entropy",
    "clipped_share": "clip_ratio/region_mean", "kl": "kl", "lr": "learning_rate",
    # Only with `update.importance`, and of the iteration's first step alone.
    "sampler_mismatch": "sampling/sampling_logp_difference/mean",
    "sampler_mismatch_max": "sampling/sampling_logp_difference/max",
}  # fmt: skip


@dataclass(slots=True, eq=False)
class RunIteration(OpenIteration):
    """An open iteration with the results of its steps so far."""

    scores: Scores = field(default_factory=lambda: Scores([]))
    monitor: Monitor | None = None
    step_monitor: Monitor | None = None  # while a monitored step is being taken
    probes: follow_probes.ProbedUpdate | None = None
    results: list[StepResult] = field(default_factory=list)
    logs: list[Mapping[str, float]] = field(default_factory=list)
    skip_reasons: list[str] = field(default_factory=list)  # of the same steps; "": not skipped


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRun:
    """The parts of a run that the recorder needs."""

    config: RunConfig
    train_set: Sequence[EncodedPrompt]
    heldout: Sequence[Prompt]
    verifier: Verifier
    folder: RunFolder
    observer: RunObserver


class RunRecorder(StepMonitor):
    """Records every step, evaluates and saves checkpoints where they are due."""

    def __init__(self, run: RecordedRun, state: RunState, *, is_main: bool) -> None:
        # No super().__init__: the trainer, which it needs, is made later and sets itself here.
        self.run, self.state, self.is_main = run, state, is_main
        self.skip_reason = ""  # why the optimizer skipped the latest step; "" if it did not
        self.reads_steps = bool(run.config.monitor.every or run.config.store.tokens)
        self.iteration: RunIteration | None = None
        self.saved_iteration = state.iteration  # of the latest checkpoint
        self._pick_prompts = lru_cache(maxsize=8)(partial(pick_prompts, run.train_set, run.config))
        self.interrupt_guard = ExitStack()  # holds `postpone_interrupts` while an iteration is open
        self.guards_interrupts = False
        self.stop_requested: Callable[[], bool] = lambda: False

    # -- an iteration, in the order of its calls -----------------------------------------------

    def begin_iteration(self, number: int) -> None:
        if not self.guards_interrupts:
            interrupts = self.interrupt_guard.enter_context(postpone_interrupts(FINISHING_NOTICE))
            self.stop_requested = interrupts.is_waiting
            self.guards_interrupts = True
        self.iteration = RunIteration(number, waiting=self._buffered_rows())
        if self.is_main:
            run = self.run
            follow_probes.draw_if_due(
                self.state,
                bind_sampler(self.state),
                run.heldout,
                run.config,
                run.verifier,
                self.iteration.clock,
            )
            release_graphs(self.state.policy.decoder)

    def record_samples(
        self,
        prompts: Sequence[EncodedPrompt],
        samples: Sequence[UnpaddedRollout],
        scores: Scores,
        verify_seconds: float,
    ) -> None:
        """Keep what was sampled: equal groups, in the order of the prompts."""
        assert self.iteration is not None
        clock, G = self.iteration.clock, len(samples) // len(prompts)
        clock.lap("sample")
        # TRL calls the reward function inside its generation: take that time out.
        clock.split("sample", "verify", verify_seconds)
        self.iteration.scores = scores
        if not self.is_main:
            return
        texts = self.state.policy.decode_rows([sample.completion_T.tolist() for sample in samples])
        rollouts = [
            replace(
                self._rollout(
                    sample, prompts[i // G][0], text, reward, self._stored_logprobs(sample)
                ),
                logged=scores.logged[i] if scores.logged else {},
            )
            for i, (sample, text, reward) in enumerate(
                zip(samples, texts, scores.rewards, strict=True)
            )
        ]
        self.iteration.set_groups(rollouts, [prompt.id for prompt, _ in prompts])

    def before_step(self, decision: Decision, step: int) -> None:
        """Read the rows of a step that is about to begin."""
        assert self.iteration is not None
        if step == 0:
            self.iteration.clock.lap("compose")
            self.iteration.decision = decision
            if self.is_main:
                self.iteration.probes = follow_probes.prepare_probed_update(
                    self.state, self.run.config, decision.plan
                )
        if not (self.is_main and (self.reads_steps or self.iteration.probes)):
            return
        if step == 0:
            self.iteration.batch = self._decision_rows(decision)
            self.iteration.monitor = make_monitor(
                self.state, self.iteration.batch, decision.plan, self.run.config
            )
        rows = [self.iteration.batch[i] for i in decision.plan.steps[step]]
        # On-policy rows get their old log-probabilities from the pass itself: ratio exactly 1.
        if self.trainer.on_policy(decision, step):
            rows = [replace(row, trainer_logprobs_T=None) for row in rows]
        keys = [(decision.rows[i].group, decision.rows[i].index) for i in decision.plan.steps[step]]
        samples = [self.trainer.rollouts_by_key[key] for key in keys]
        result = self.evaluate_rows(rows, samples)
        if not result.rows:
            result = replace(result, skipped="no signal", grad_norm=0.0)
        else:
            optimizer = self.state.optimizer
            learning_rate = optimizer.learning_rate()
            result = replace(result, learning_rate=learning_rate)
            if monitor := self.iteration.monitor and self.iteration.monitor.at(step, rows):
                monitor.before_update(self.state.policy, rows, result)
                self.iteration.step_monitor = monitor
            if tracker := self.iteration.probes:
                tracker.monitor.at(step).before_update(self.state.policy, rows, result)
        # Hidden states are large, and only the monitors need them.
        self.iteration.results.append(replace(result, hidden=()))

    def after_step(self) -> None:
        """Measure the step that was just taken; its log is not written yet."""
        iteration = self.iteration
        assert iteration is not None
        if iteration.results and self.skip_reason:
            iteration.results[-1] = replace(
                iteration.results[-1], skipped=self.skip_reason, learning_rate=None
            )
            if iteration.probes:
                iteration.probes.monitor.forget_step(len(iteration.results) - 1)
        monitor, iteration.step_monitor = iteration.step_monitor, None
        if monitor and self.skip_reason != "no signal":
            monitor.after_update(self.state.policy)
            # A skipped step moved nothing: its measurement would look like a displacement of zero.
            if self.skip_reason:
                monitor.measurements.pop()

    def record_log(self, logs: Mapping[str, float]) -> None:
        """Keep TRL's numbers of a step; the last step of the plan ends the iteration."""
        iteration = self.iteration
        assert iteration is not None
        assert iteration.decision is not None
        iteration.logs.append(logs)
        iteration.skip_reasons.append(self.skip_reason)
        steps_done = len(iteration.logs)
        if iteration.results:
            result = iteration.results[-1]
            grad_norm = 0.0 if result.skipped == "no signal" else float(logs["grad_norm"])
            # Results number rows within the step; the folder numbers them within the batch.
            planned_rows = iteration.decision.plan.steps[steps_done - 1]
            rows = tuple(planned_rows[i] for i in result.rows)
            iteration.results[-1] = replace(result, grad_norm=grad_norm, rows=rows)
        if steps_done == len(iteration.decision.plan.steps):
            self.close_iteration()

    def close_iteration(self) -> None:
        """Write the open iteration, if any; then checkpoint and evaluate where they are due."""
        if self.iteration is None:
            return
        number, config = self.iteration.number, self.run.config
        if self.iteration.logs:
            check_finite(self.state, number)
        if self.is_main:
            self._write_iteration(self.iteration)
        self.state.iteration = number
        stopping = any(self._gather_flags(self.stop_requested()))
        is_last = number == config.loop.iterations and config.store.model
        if self.is_main and (stopping or is_last or number % config.loop.checkpoint_every == 0):
            self._save_checkpoint()
        if stopping:
            # A barrier: the launcher kills all processes as soon as one exits.
            self._gather_flags(True)
        self.iteration = None
        # With several processes, signals stay postponed until all processes know of them: a signal
        # that arrives after a process has sent its flag would otherwise end that process alone.
        if stopping or self.trainer.accelerator.num_processes == 1:
            self.interrupt_guard.close()
            self.guards_interrupts = False
        if stopping:
            raise KeyboardInterrupt  # the signal may have reached another process only
        self.evaluate_heldout()

    def save_unsaved(self) -> None:
        """After an interrupt between two iterations, save the last one if it has no checkpoint."""
        unsaved = self.saved_iteration != self.state.iteration
        if self.is_main and self.iteration is None and unsaved:
            with postpone_interrupts(SAVING):
                self._save_checkpoint()

    def evaluate_heldout(self) -> None:
        """Held-out success, where it is due at this iteration."""
        run = self.run
        if self.is_main:
            evaluate(self.state, run.heldout, run.config, run.verifier, run.folder, run.observer)
            release_graphs(self.state.policy.decoder)

    # -- writing -------------------------------------------------------------------------------

    def _gather_flags(self, flag: bool) -> list[bool]:
        """The flags of all processes; each waits for the others."""
        return processes.gather_lists([flag], self.trainer.accelerator.num_processes)

    def _write_iteration(self, iteration: RunIteration) -> None:
        config, clock, decision = self.run.config, iteration.clock, iteration.decision
        clock.lap("update" if decision else "compose")
        if decision:
            seconds = iteration.monitor.seconds if iteration.monitor else 0.0
            clock.split("update", "monitor", seconds)
            iteration.batch = iteration.batch or self._decision_rows(decision)
        probe_result = iteration.probes.finish(clock) if iteration.probes else None
        record = iteration.finish(
            scores=iteration.scores,
            # Without token weights, which would take a pass: metrics read the signs only.
            credited=assign(iteration.groups, config.credit.name),
            results=iteration.results,
            measurements=iteration.monitor.measurements if iteration.monitor else [],
            still_waiting=self._buffered_rows(),
            max_age=config.balance.max_age,
        )
        record = replace(record, probes=probe_result)
        buffer = self.trainer.planner.buffer
        if buffer is None:  # not `or`: an empty buffer is false, and its counts matter too
            buffer = self.state.buffer
        metrics_line = metrics.metrics_record(record, buffer, clock)
        if not iteration.results and iteration.logs:
            metrics_line |= logged_metrics(iteration.logs, iteration.skip_reasons)
        write_iteration(self.run.folder, record, metrics_line, config.store)
        self.run.observer.on_iteration(metrics_line)

    def _save_checkpoint(self) -> None:
        """Save a checkpoint of the native format, with the tokens of waiting rows."""
        buffer = self.trainer.planner.buffer
        if buffer is not None:
            replace_waiting_rows(self.state, [self._with_rollout(row) for row in buffer.state()])
            self.state.buffer.counts = buffer.counts
        self.state.skipped_in_a_row = self.trainer.skipped_in_a_row
        save_state(self.run.folder, self.state, self.run.config)
        self.saved_iteration = self.state.iteration

    # -- rows under the native engine's names --------------------------------------------------

    def _decision_rows(self, decision: Decision) -> list[Row]:
        """The decision's rows with their rollouts."""
        return [self._with_native_group(self._with_rollout(row)) for row in decision.rows]

    def _buffered_rows(self) -> list[Row]:
        """The rows that wait for a balanced batch."""
        buffer = self.trainer.planner.buffer
        return [self._with_native_group(row) for row in buffer.state()] if buffer else []

    def _with_native_group(self, row: Row) -> Row:
        return replace(row, group=f"{row.born}:{self._prompt_of_group(row.group).id}")

    def _with_rollout(self, row: Row) -> Row:
        sample = self.trainer.rollouts_by_key[row.group, row.index]
        text = self.state.policy.decode(sample.completion_T.tolist())
        prompt, sampled_T = self._prompt_of_group(row.group), self._sampled_logprobs(sample)
        return replace(
            row,
            rollout=self._rollout(sample, prompt, text, float("nan"), sampled_T),
            trainer_logprobs_T=sample.old_logprobs,
            reference_logprobs_T=sample.reference_logprobs,
        )

    def _sampled_logprobs(self, sample: UnpaddedRollout) -> Floats:
        """Those of vLLM; nan without it, and where a cut leaves none of the full distribution."""
        sampled_T = sample.policy_values(SAMPLER_LOGPROBS)
        sample_config = self.run.config.sample
        is_cut = cuts_the_distribution(sample_config.top_p, sample_config.top_k)
        if sampled_T is None or is_cut:
            return np.full(len(sample.completion_T), np.nan, np.float32)
        return sampled_T

    def _stored_logprobs(self, sample: UnpaddedRollout) -> Floats:
        """For rollouts/: transformers samples with the trainer's model, so there the trainer's."""
        old_T = sample.old_logprobs
        if self.run.config.sample.engine == "vllm" or old_T is None:
            return self._sampled_logprobs(sample)
        return old_T

    def _prompt_of_group(self, group: str) -> Prompt:
        """The prompt of a group, which the adapter names iteration:index."""
        iteration, index = map(int, group.split(":"))
        return self._pick_prompts(iteration)[index][0]

    def _rollout(
        self,
        sample: UnpaddedRollout,
        prompt: Prompt,
        text: str,
        reward: float,
        sampled_logprobs: Floats,
    ) -> Rollout:
        tokens = sample.completion_T.numpy().astype(np.int32)
        return Rollout(
            prompt_id=prompt.id,
            prompt=prompt.problem,
            answer=prompt.answer,
            response=text,
            reward=reward,
            prompt_tokens=sample.prompt_S.numpy().astype(np.int32),
            response_tokens=tokens,
            sampled_logprobs=sampled_logprobs,
            finished=int(tokens[-1]) in self.state.policy.end_tokens,
            columns=prompt.columns,
            messages=prompt.messages,
        )


def logged_metrics(
    logs: Sequence[Mapping[str, float]], skip_reasons: Sequence[str]
) -> dict[str, Any]:
    """The update's numbers by TRL's log of every step; skipped steps are left out of the means.

    Example:
        >>> logged_metrics([{"loss": 0.5, "learning_rate": 1e-5}, {"loss": 0.0}], ["", "no signal"])
        {'steps': 1, 'skipped_steps': 1, 'not_finite_steps': 0, 'loss': 0.5, 'lr': 1e-05}
    """
    completed = [log for log, reason in zip(logs, skip_reasons, strict=True) if not reason]
    numbers: dict[str, Any] = {
        "steps": len(completed),
        "skipped_steps": len(logs) - len(completed),
        "not_finite_steps": sum(reason == "not finite" for reason in skip_reasons),
    }
    for name, trl_name in LOGGED_METRICS.items():
        values = [log[trl_name] for log in completed if trl_name in log]  # no KL without a beta
        if values:
            numbers[name] = float(values[-1] if name == "lr" else np.mean(values))
    return numbers
