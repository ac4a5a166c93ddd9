"""`run_folder`: what a trainer in a script of one's own did, for `poise report` and `poise look`.

    imported.json         TRL and its version, and the options that pages read
    plans.jsonl           which rollouts shared an optimizer step
    metrics.jsonl         a line a generation; rollouts/ a line a rollout, with its tokens
    tokens/, pushes/      of the optimizer steps that the monitor looked at; vocabulary.json

An iteration of the folder is a generation: with RB several may pass before an update. It is written
when the next begins, before a checkpoint, or at the end, and only by process 0. A run that is
resumed first forgets what lies after its checkpoint. There is no config.toml: the run is TRL's,
`poise train --resume` does not take it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.batch.describe import describe
from counterpoise.batch.dropped_rollouts import account
from counterpoise.config import StoreConfig
from counterpoise.errors import PoiseError
from counterpoise.files import leftovers, remove_leftovers
from counterpoise.hosts.importing.formats import name_of
from counterpoise.hosts.trl.batch_rules import Decision, rollout
from counterpoise.hosts.trl.importer import as_text
from counterpoise.hosts.trl.samples import Sample
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.run import metrics
from counterpoise.run.write_iteration import write_iteration
from counterpoise.store.folder import IMPORTED, SCHEMA, RunFolder, is_imported
from counterpoise.types import Floats, Group, Rollout, Row, StepResult
from counterpoise.verify.scores import Scores

if TYPE_CHECKING:
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

UNSEEN = StepResult((), (), (), (), (), (), np.empty(0, np.float32), 0.0, 0.0, 0.0, 0, "not seen")


@dataclass(slots=True, eq=False)
class Opened:
    """A generation that goes on."""

    number: int
    waiting: list[Row]  # in the buffer before it was sampled
    clock: metrics.Clock = field(default_factory=metrics.Clock)
    groups: list[Group] = field(default_factory=list)
    decision: Decision | None = None
    batch: list[Row] = field(default_factory=list)  # of the decision, with their rollouts
    results: dict[int, StepResult] = field(default_factory=dict)  # by step of the plan
    views: list[StepMeasurement] = field(default_factory=list)
    taken: int = 0  # optimizer steps
    norms: list[float] = field(default_factory=list)  # of gradients, where TRL logs them


class Record:
    """The folder of one trainer, on process 0."""

    def __init__(self, trainer: PoiseGRPOTrainer, path: Path) -> None:
        self.trainer, self.folder = trainer, RunFolder(path)
        self.open: Opened | None = None

    # -- a run, in the order of its calls ------------------------------------------------------

    def start(self) -> None:
        path, trainer = self.folder.path, self.trainer
        resumed = trainer.state.global_step > 0
        if not (resumed and is_imported(path)):
            _check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise PoiseError(f"run_folder={path} cannot be written: {fault.strerror}") from fault
        if resumed:
            self.folder.rewind(trainer._generation)
        else:
            remove_leftovers(path, IMPORTED)
        with self.folder.replacing(IMPORTED) as temporary:
            temporary.write_text(json.dumps(head(trainer), indent=1), encoding="utf-8")
        if trainer.monitor:
            self.folder.write_vocabulary(trainer.policy.pieces())

    def begin(self, now: int) -> None:
        self.close()
        buffer = self.trainer.planner.buffer
        self.open = Opened(now, list(buffer.state()) if buffer else [])

    def sampled(
        self, prompts: Sequence[Any], samples: Sequence[Sample], rewards_R: Sequence[float]
    ) -> None:
        assert self.open is not None
        self.open.clock.lap("sample")
        now, G = self.open.number, self.trainer.num_generations
        texts = self.trainer._tokenizer.batch_decode(
            [sample.completion_T.tolist() for sample in samples], skip_special_tokens=True
        )
        made = [
            self._told(sample, prompt, text, reward)
            for sample, prompt, text, reward in zip(samples, prompts, texts, rewards_R, strict=True)
        ]
        self.open.groups = [
            Group(f"{now}:{g}", now, tuple(made[g * G : (g + 1) * G]))
            for g in range(len(made) // G)
        ]

    def decided(self, decision: Decision) -> None:
        """What was sampled makes a batch; its samples are on the trainer's shelf until the next."""
        assert self.open is not None
        self.open.clock.lap("compose")
        self.open.decision = decision
        for row in decision.rows:
            sample = self.trainer.shelf[row.name]
            old_T = sample.extra.get("old_per_token_logps")
            scored_T = None if old_T is None else old_T.float().numpy()
            self.open.batch.append(replace(row, rollout=_bare(sample), scored_T=scored_T))

    def looked(
        self, step: int, places: Sequence[int], seen: StepResult, view: StepMeasurement
    ) -> None:
        """At a step of the plan; `places` are those of its rows that were read, in the batch."""
        assert self.open is not None
        self.open.results[step] = replace(seen, rows=tuple(places[i] for i in seen.rows), hidden=())
        of_step = {i: n for n, i in enumerate(self.open.decision.plan.steps[step])}  # type: ignore[union-attr]
        rows = tuple(of_step[places[i]] for i in view.rows)
        self.open.views.append(replace(view, step=step, rows=rows))

    def stepped(self) -> None:
        if self.open is not None:
            self.open.taken += 1

    def logged(self, logs: Mapping[str, Any]) -> None:
        norm = float(logs.get("grad_norm", np.nan))
        if self.open is not None and np.isfinite(norm):
            self.open.norms.append(norm)

    def close(self) -> None:
        """Write what the open generation made."""
        opened, self.open = self.open, None
        if opened is None or not opened.groups:
            return
        opened.clock.lap("update" if opened.decision else "compose")
        made = self._iteration(opened)
        buffer = self.trainer.planner.buffer
        if buffer is None:
            buffer = RewardBalancedBuffer(tau=0.0, target=1)
        record = metrics.record(made, buffer, opened.clock)
        record["grad_norm"] = float(np.mean(opened.norms)) if opened.norms else None
        record |= {"steps": opened.taken, "skipped_steps": 0}
        store = StoreConfig(rollouts=True, tokens=True, model=False, report=True)
        write_iteration(self.folder, made, record, store)

    # -- its parts -----------------------------------------------------------------------------

    def _iteration(self, opened: Opened) -> metrics.Iteration:
        planner, decision = self.trainer.planner, opened.decision
        plan = decision.plan if decision else None
        left = list(planner.buffer.state()) if planner.buffer else []
        fresh = [row for group in planner.credited for row in group]
        oldest = opened.number - self.trainer.args.max_age
        steps = range(len(plan.steps)) if plan else ()
        return metrics.Iteration(
            number=opened.number,
            groups=opened.groups,
            scores=Scores([r.reward for group in opened.groups for r in group.rollouts]),
            credited=planner.credited,
            batch=opened.batch,
            plan=plan,
            description=describe(opened.batch, plan) if plan else None,
            results=[opened.results.get(s, UNSEEN) for s in steps],
            views=opened.views,
            drops=account([], [*opened.waiting, *fresh], opened.batch, left, oldest),
        )

    def _told(self, sample: Sample, prompt: Any, text: str, reward: float) -> Rollout:
        words = as_text(prompt, "prompt")
        return replace(
            _bare(sample, trainers=True),
            prompt_id=f"trl/{name_of(words)}",
            prompt=words,
            response=text,
            reward=0.0 if np.isnan(reward) else reward,
            finished=int(sample.completion_T[-1]) in self.trainer.eos_token_ids,
        )


def head(trainer: PoiseGRPOTrainer) -> dict[str, Any]:
    """imported.json: who made the run, and what the pages read of its options."""
    options = trainer.args
    G = options.num_generations
    prompts = options.generation_batch_size // G
    said = [f"composer={options.composer}", f"tau={options.tau:g}", f"credit={options.credit}"]
    if options.credit_weights != "uniform":
        said.append(f"credit_weights={options.credit_weights}")
    return {
        "schema": SCHEMA,
        "source": f"TRL {version('trl')} with counterpoise.hosts.trl",
        "tokenizer": getattr(trainer._tokenizer, "name_or_path", "") or None,
        "notes": [", ".join(said)],
        "options": {
            "sample": {"prompts": prompts, "group_size": G},
            "balance": {
                "tau": options.tau, "target": options.balance_target, "max_age": options.max_age,
            },
            "update": {"max_grad_norm": options.max_grad_norm},
        },
    }  # fmt: skip


def _check_free(path: Path) -> None:
    try:
        started = set(leftovers(path, IMPORTED))  # by a process that was killed at its start
        free = not path.exists() or (path.is_dir() and not set(path.iterdir()) - started)
    except OSError as fault:
        raise PoiseError(f"run_folder={path} cannot be used: {fault.strerror}") from fault
    if not free:
        raise PoiseError(
            f"run_folder={path} is not empty: choose another or remove it; a run goes on in its "
            "own by trainer.train(resume_from_checkpoint=...)"
        )


def _bare(sample: Sample, trainers: bool = False) -> Rollout:
    """With the sampler's log-probabilities, which TRL has from vLLM alone; else unknown, or the
    `trainers`."""
    made = rollout(sample)
    by_sampler_T = sample.extra.get("sampling_per_token_logps")
    if by_sampler_T is None and trainers:
        return made
    unknown: Floats = np.full(len(made.response_tokens), np.nan, np.float32)
    known = unknown if by_sampler_T is None else by_sampler_T.float().numpy()
    return replace(made, sampled_logprobs=known)


def callback(record: Record) -> Any:
    """TRL's bells for the folder."""
    from transformers import TrainerCallback

    class Bells(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            record.start()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            record.stepped()

        def on_log(self, *args: Any, logs: Any = None, **kwargs: Any) -> None:
            record.logged(logs or {})

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            record.close()
            record.folder.sync()

    return Bells()
