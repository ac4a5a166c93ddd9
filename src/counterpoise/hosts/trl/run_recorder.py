"""The run folder of a run through TRL: the same files and numbers as the native engine's.

An iteration is opened before it is sampled and closed after the log of its last optimizer step, or
when the next is begun without one. A step is read once more by the native forward, just before it:
entropies, ratios, pulls and the microscope's tensors are not TRL's to give. Without monitor and
store.tokens nothing is read, and the update's numbers are those that TRL logs. `sample_seconds`
includes TRL's pass for the old log-probabilities, which are what rollouts/ holds: its sampler gives
none. Process 0 records; the others do not.

Ctrl-C and SIGTERM wait for the end of an open iteration, as in the native loop: it is finished and
saved. One process that hears them is enough, and none leaves before the checkpoint is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from counterpoise.batch.describe import Description, describe
from counterpoise.batch.dropped_rollouts import account
from counterpoise.config import RunConfig
from counterpoise.credit.assign import assign
from counterpoise.hosts.trl import processes
from counterpoise.hosts.trl.batch_rules import Decision
from counterpoise.hosts.trl.monitor import StepMonitor
from counterpoise.hosts.trl.samples import Sample
from counterpoise.loop import FINISHING, evaluate, look_at
from counterpoise.microscope.monitor import Monitor
from counterpoise.run import metrics
from counterpoise.run.interrupts import postponed
from counterpoise.run.state import State, check_finite, refill_buffer, save
from counterpoise.run.watch import Watch
from counterpoise.run.write_iteration import write_iteration
from counterpoise.sample.collect import Encoded, pick_prompts
from counterpoise.store.folder import RunFolder
from counterpoise.types import Floats, Group, Prompt, Rollout, Row, StepResult
from counterpoise.verify.scores import Scores, Verifier

SAVING = "saving a checkpoint"
LOGGED = {  # ours -> TRL's
    "loss": "loss", "grad_norm": "grad_norm", "entropy": "entropy",
    "clipped_share": "clip_ratio/region_mean",
}  # fmt: skip


@dataclass(slots=True, eq=False)
class Opened:
    """An iteration that goes on."""

    number: int
    clock: metrics.Clock = field(default_factory=metrics.Clock)
    groups: list[Group] = field(default_factory=list)
    scores: Scores = field(default_factory=lambda: Scores([]))
    waiting: list[Row] = field(default_factory=list)  # in the buffer before it was sampled
    decision: Decision | None = None
    batch: list[Row] = field(default_factory=list)  # with what their rollouts hold
    monitor: Monitor | None = None
    look: Monitor | None = None  # at the step that is being taken
    results: list[StepResult] = field(default_factory=list)
    logs: list[Mapping[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a run is made of, for whoever records it."""

    config: RunConfig
    train_set: Sequence[Encoded]
    heldout: Sequence[Prompt]
    verifier: Verifier
    folder: RunFolder
    watch: Watch


class Recorder(StepMonitor):
    def __init__(self, run: Run, state: State, *, main: bool) -> None:
        self.run, self.state, self.main = run, state, main
        self.skipped = ""  # why the optimizer left the latest step out
        self.reads = bool(run.config.monitor.every or run.config.store.tokens)
        self.open: Opened | None = None
        self.saved = state.iteration  # of the latest checkpoint
        self.finishing = ExitStack()  # `postponed` from the beginning of an iteration to its end
        self.stopped: Callable[[], bool] = lambda: False  # whether a signal waits for that end

    # -- an iteration, in the order of its calls -----------------------------------------------

    def begin(self, now: int) -> None:
        self.stopped = self.finishing.enter_context(postponed(FINISHING))
        self.open = Opened(now, waiting=self._buffered())

    def sampled(
        self, asked: Sequence[Encoded], samples: Sequence[Sample], scores: Scores, judged: float
    ) -> None:
        assert self.open is not None
        clock, G = self.open.clock, len(samples) // len(asked)
        clock.lap("sample")
        clock.split("sample", "verify", judged)
        self.open.scores = scores
        if not self.main:
            return
        texts = self.state.policy.texts([s.completion_T.tolist() for s in samples])
        rollouts = [
            self._rollout(sample, asked[i // G][0], text, reward)
            for i, (sample, text, reward) in enumerate(
                zip(samples, texts, scores.rewards, strict=True)
            )
        ]
        now = self.open.number
        self.open.groups = [
            Group(f"{now}:{prompt.id}", now, tuple(rollouts[g * G : (g + 1) * G]))
            for g, (prompt, _) in enumerate(asked)
        ]

    def before(self, decision: Decision, step: int) -> None:
        """A step is about to begin."""
        assert self.open is not None
        if step == 0:
            self.open.clock.lap("compose")
            self.open.decision = decision
        if not (self.main and self.reads):
            return
        if step == 0:
            self.open.batch = self._content(decision)
            config = self.run.config
            self.open.monitor = look_at(self.state, self.open.batch, decision.plan, config)
        rows = [self.open.batch[i] for i in decision.plan.steps[step]]
        if self.trainer.on_policy(decision, step):  # the pass gives their old log-probabilities
            rows = [replace(row, scored_T=None) for row in rows]
        result = self.read(rows)
        if not result.rows:
            result = replace(result, skipped="no signal", grad_norm=0.0)
        elif look := self.open.monitor and self.open.monitor.at(step, rows):
            look.before(self.state.policy, rows, result)
            self.open.look = look
        self.open.results.append(replace(result, hidden=()))

    def after(self) -> None:
        """A step is done; its log is not written yet."""
        assert self.open is not None
        if self.open.results and self.skipped:
            self.open.results[-1] = replace(self.open.results[-1], skipped=self.skipped)
        look, self.open.look = self.open.look, None
        if look and self.skipped != "no signal":
            look.after(self.state.policy)
            if self.skipped:
                look.measurements.pop()

    def logged(self, logs: Mapping[str, float]) -> None:
        """TRL's numbers of a step; after the last one the iteration is over."""
        assert self.open is not None
        assert self.open.decision is not None
        self.open.logs.append(logs)
        done = len(self.open.logs)
        if self.open.results:
            last = self.open.results[-1]
            norm = 0.0 if last.skipped == "no signal" else float(logs["grad_norm"])
            of_plan = self.open.decision.plan.steps[done - 1]
            rows = tuple(of_plan[i] for i in last.rows)
            self.open.results[-1] = replace(last, grad_norm=norm, rows=rows)
        if done == len(self.open.decision.plan.steps):
            self.close()

    def close(self) -> None:
        """Write what the open iteration made; then checkpoint and judge, where they are due."""
        if self.open is None:
            return
        now, config = self.open.number, self.run.config
        if self.open.logs:
            check_finite(self.state, now)
        self.state.iteration = now
        if self.main:
            self._write(self.open)
        stopped = any(self._of_all(self.stopped()))
        last = now == config.loop.iterations and config.store.model
        if self.main and (stopped or last or now % config.loop.checkpoint_every == 0):
            self._save()
        if stopped:
            self._of_all(True)  # wait for the checkpoint: the launcher ends all when one leaves
        self.open = None
        self.finishing.close()
        if stopped:
            raise KeyboardInterrupt  # heard by another process
        self.judge()

    def keep(self) -> None:
        """Stopped between two iterations, or while one is judged: a checkpoint, if it lacks one."""
        if self.main and self.open is None and self.saved != self.state.iteration:
            with postponed(SAVING):
                self._save()

    def judge(self) -> None:
        """Held-out success, where it is due at this iteration."""
        run = self.run
        if self.main:
            evaluate(self.state, run.heldout, run.config, run.verifier, run.folder, run.watch)

    # -- its parts -----------------------------------------------------------------------------

    def _of_all(self, own: bool) -> list[bool]:
        """Of every process; each waits for the others."""
        return processes.gather([own], self.trainer.accelerator.num_processes)

    def _write(self, opened: Opened) -> None:
        config, clock, decision = self.run.config, opened.clock, opened.decision
        clock.lap("update" if decision else "compose")
        seconds = opened.monitor.seconds if opened.monitor else 0.0
        if decision:
            clock.split("update", "monitor", seconds)
        batch = opened.batch or (self._content(decision) if decision else [])
        plan = decision.plan if decision else None
        description: Description | None = describe(batch, plan) if plan else None
        credited = assign(opened.groups, config.credit.name)  # metrics read their signs only
        rows = [*opened.waiting, *(row for group in credited for row in group)]
        oldest = opened.number - config.balance.max_age
        made = metrics.Iteration(
            number=opened.number,
            groups=opened.groups,
            scores=opened.scores,
            credited=credited,
            batch=batch,
            plan=plan,
            description=description,
            results=opened.results,
            views=opened.monitor.measurements if opened.monitor else [],
            drops=account([], rows, batch, self._buffered(), oldest),
        )
        buffer = self.trainer.planner.buffer
        buffer = self.state.buffer if buffer is None else buffer  # an empty one has counts too
        record = metrics.record(made, buffer, clock)
        if not self.reads and opened.logs:
            means = {
                ours: float(np.mean([log[theirs] for log in opened.logs]))
                for ours, theirs in LOGGED.items()
            }
            record = {**record, "steps": len(opened.logs), **means}
        write_iteration(self.run.folder, made, record, config.store)
        self.run.watch.iterated(record)

    def _save(self) -> None:
        """A checkpoint of the native form; what waits is put back with its tokens."""
        buffer = self.trainer.planner.buffer
        if buffer is not None:
            refill_buffer(self.state, [self._waiting(row) for row in buffer.state()])
            self.state.buffer.counts = buffer.counts
        self.state.skipped_in_a_row = self.trainer.skipped_in_a_row
        save(self.run.folder, self.state, self.run.config)
        self.saved = self.state.iteration

    def _waiting(self, row: Row) -> Row:
        sample = self.trainer.shelf[row.group, row.index]
        prompt = self._prompt(row.group)
        text = self.state.policy.decode(sample.completion_T.tolist())
        rollout = self._rollout(sample, prompt, text, float("nan"))
        unknown = np.full(len(rollout.response_tokens), np.nan, np.float32)  # TRL's sampler's
        rollout = replace(rollout, sampled_logprobs=unknown)
        return replace(row, rollout=rollout, scored_T=_old(sample))

    def _content(self, decision: Decision) -> list[Row]:
        """The decision's rows with their rollouts, under the names of the native engine."""
        return [self._named(self._waiting(row)) for row in decision.rows]

    def _buffered(self) -> list[Row]:
        """What waits, under the names of the native engine."""
        buffer = self.trainer.planner.buffer
        return [self._named(row) for row in buffer.state()] if buffer else []

    def _named(self, row: Row) -> Row:
        return replace(row, group=f"{row.born}:{self._prompt(row.group).id}")

    def _prompt(self, key: str) -> Prompt:
        """Of the adapter's name of a group: iteration, and place in it."""
        now, place = map(int, key.split(":"))
        return pick_prompts(self.run.train_set, self.run.config, now)[place][0]

    def _rollout(self, sample: Sample, prompt: Prompt, text: str, reward: float) -> Rollout:
        tokens = sample.completion_T.numpy().astype(np.int32)
        old_T = _old(sample)
        return Rollout(
            prompt_id=prompt.id,
            prompt=prompt.problem,
            answer=prompt.answer,
            response=text,
            reward=reward,
            prompt_tokens=sample.prompt_S.numpy().astype(np.int32),
            response_tokens=tokens,
            sampled_logprobs=np.full(len(tokens), np.nan, np.float32) if old_T is None else old_T,
            finished=int(tokens[-1]) in self.state.policy.end_tokens,
            columns=prompt.columns,
        )


def _old(sample: Sample) -> Floats | None:
    old_T = sample.extra.get("old_per_token_logps")
    return None if old_T is None else old_T.float().numpy()
