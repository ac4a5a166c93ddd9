"""Record every update of a verl run into `+poise.run_folder`, for `poise report` and replays.

    imported.json    verl's version, and the options that pages show
    plans.jsonl      which rollouts shared an optimizer step, as the workers got them
    metrics.jsonl    a line for each update
    rollouts/        the rollouts that were sampled
    drops.jsonl      RB: the rollouts that were dropped
    tokens/          the trained tokens: advantage and old log-probability; with the monitor also
                     displacement and what pushed them
    pushes/          the monitor: the strongest pushes

An iteration is an update. With RB the rollouts of an iteration are all that were sampled since the
update before, so that `success` is that of the policy and not of the balanced batch; rows that
waited are found in the iteration that sampled them. In verl's asynchronous mode all rows of an
update may have waited: then `success` and the like are those of the update before.

The driver process writes it after the update. Workers do not report what happens between optimizer
steps: `pull` is known for the rows that the monitor measured, and `logprob` for these and for the
rows of the first step, if the weights before the update scored them. Elsewhere both are NaN, and so
is every `entropy`. The displacement of a token is that of the whole update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transfer_queue import KVBatchMeta

from counterpoise.batch.describe import describe_plan
from counterpoise.config import StoreConfig
from counterpoise.hosts.recorded_folder import start_folder
from counterpoise.hosts.recorded_steps import observed_metrics, observed_step
from counterpoise.hosts.verl import queue
from counterpoise.hosts.verl.batch_rows import (
    FIELDS,
    OPTIONAL_FIELDS,
    read_rollouts,
    read_rows,
    real_indices,
)
from counterpoise.hosts.verl.options import (
    SECTION,
    VerlAdapterOptions,
    bypasses_scoring,
    rollouts_per_batch,
    select,
    updates_per_global_step,
)
from counterpoise.hosts.verl.step_coupling import StepCoupling
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.run import metrics
from counterpoise.run.write_iteration import write_iteration
from counterpoise.store.folder import SCHEMA, RunFolder
from counterpoise.store.schema import MONITOR_METRICS
from counterpoise.types import BatchPlan, Floats, Group, Rollout, Row, StepResult, TokenTrace
from counterpoise.verify.scores import Scores, are_binary

if TYPE_CHECKING:
    from counterpoise.hosts.verl.sampler import SampledForUpdate

# Our names of numbers that verl's actor reports.
VERL_METRICS = {
    "loss": "actor/pg_loss", "grad_norm": "actor/grad_norm", "entropy": "actor/entropy",
    "clipped_share": "actor/pg_clipfrac", "lr": "actor/lr",
}  # fmt: skip
RESUME_HINT = "to continue the run in it, set trainer.resume_mode=auto"
# Values of loss_agg_mode by which verl's entropy is a mean over tokens, and no sum.
MEAN_ENTROPIES = ("token-mean", "seq-mean-token-mean")
# Fields of metrics.jsonl about what was sampled for the update.
SAMPLING_METRICS = (
    "success", "reward", "mixed_groups", "response_length", "truncated_share", "turns",
    "told_tokens",
)  # fmt: skip


class MonitoredUpdate(NamedTuple):
    """What the monitor measured of an update."""

    logprobs_before: Any  # nested, those of the weights that the update starts from
    logprobs_after: Any  # nested, those of the new weights
    couplings: Sequence[StepCoupling] = ()


class VerlUpdate(NamedTuple):
    """One update of a verl run, as the trainer hands it to the recorder."""

    number: int
    batch: KVBatchMeta
    plan: BatchPlan
    verl_metrics: Mapping[str, Any]
    monitored: MonitoredUpdate | None = None
    sampled: SampledForUpdate | None = None  # of RB
    # Of rows whose old log-probabilities are not those of the weights that the update starts from.
    keys_with_older_scores: Collection[str] = ()


def record_notes(config: Any, options: VerlAdapterOptions, coupling_fault: str) -> list[str]:
    """What a reader of this run's record should know; `coupling_fault`: why it has no pushes."""
    notes = []
    if coupling_fault:
        notes.append(f"pushes are not measured: {coupling_fault}")
    if options.trajectory != "off":
        notes.append("advantages are those before the trajectory weights of a step")
    if (updates := updates_per_global_step(config)) > 1:
        notes.append(
            f"{updates} iterations are one global step of verl; old log-probabilities are those of "
            "its first weights"
        )
    return notes


class UpdateRecorder:
    """Writes the folder of one verl run."""

    def __init__(self, path: Path, config: Any, notes: Sequence[str] = ()) -> None:
        self.folder, self.config, self.notes = RunFolder(path), config, notes
        self._has_started = False
        # The SAMPLING_METRICS of the latest update for which rollouts were sampled, by name.
        self._sampling_numbers: dict[str, Any] = {}

    def record(self, update: VerlUpdate, tokenizer: Any) -> None:
        """Write the update, with what the monitor measured of it."""
        number, batch, plan, verl_metrics, monitored, sampled, keys_with_older_scores = update
        couplings = monitored.couplings if monitored else ()
        if not self._has_started:
            self._start(number, tokenizer)
        data = queue.get_fields(batch, *FIELDS, *OPTIONAL_FIELDS)
        max_length = select(self.config, "data.max_response_length")
        rows, old_logprobs = read_rows(number, batch, data, tokenizer, max_length)
        indices = real_indices(batch)
        row_of_index = {batch_index: row for row, batch_index in enumerate(indices)}
        keys = [batch.keys[index] for index in indices]
        displacements = _displacements(batch, data, monitored) if monitored else None
        # By the weights before the update; NaN where the old ones are older, or are the sampler's.
        logprobs_at_start = [
            np.full(len(old_T), np.nan, np.float32)
            if key in keys_with_older_scores or bypasses_scoring(self.config)
            else old_T
            for key, old_T in zip(keys, old_logprobs, strict=True)
        ]
        measured = _measured_rows(couplings, row_of_index)
        if sampled is not None:
            rows = [
                _as_sampled(row, sampled.batch_rows[key], sampled.update_of_group)
                for row, key in zip(rows, keys, strict=True)
            ]
        results = [
            _step_result(rows, step, old_logprobs, None if s else logprobs_at_start, measured)
            for s, step in enumerate(plan.steps)
        ]
        groups = (
            _groups_of_rows(number, rows)
            if sampled is None
            else _sampled_groups(number, sampled, tokenizer, max_length)
        )
        # If no rollouts were sampled for this update, the record describes those it trained on.
        counted_groups = groups or _groups_of_rows(number, rows)
        rewards = [rollout.reward for group in counted_groups for rollout in group.rollouts]
        result = metrics.IterationResult(
            number=number,
            groups=counted_groups,
            scores=Scores(rewards, graded=not are_binary(rewards)),
            credited_groups=[list(sampled.sampled_rows.values()) if sampled else rows],
            batch=rows,
            plan=plan,
            description=describe_plan(rows, plan),
            results=results,
            measurements=[
                _with_rows_of_plan(coupling, plan, row_of_index, displacements)
                for coupling in couplings
                if displacements is not None
            ],
            sampling_rounds=sampled.sampling_rounds if sampled else 1,
            drops=_named_drops(sampled) if sampled else {},
        )
        if any(step.rows for step in results):
            self._write_tokens(result, displacements)
        line = self._metrics_line(result, verl_metrics, sampled)
        if groups:
            self._sampling_numbers = {name: line[name] for name in SAMPLING_METRICS if name in line}
        else:
            line |= {**self._sampling_numbers, "rollouts": 0, "rollout_tokens": 0}
        store = StoreConfig(rollouts=bool(groups), tokens=False, model=False, report=True)
        write_iteration(self.folder, result, line, store)
        self.folder.sync()

    def _write_tokens(
        self, result: metrics.IterationResult, displacements: Sequence[Floats] | None
    ) -> None:
        trace = metrics.token_trace(result)
        if displacements is not None:
            trace = _with_displacement(trace, result, displacements)
        self.folder.write_table("tokens", result.number, trace)
        for kind, table in metrics.watched_traces(result).items():
            self.folder.write_table(kind, result.number, table)

    def _start(self, number: int, tokenizer: Any) -> None:
        finished = number - 1 if number > 1 else None
        start_folder(self.folder, self._describe(tokenizer), finished, RESUME_HINT)
        pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        self.folder.write_vocabulary(pieces)
        self._has_started = True

    def _describe(self, tokenizer: Any) -> dict[str, Any]:
        """The content of imported.json."""
        actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
        options: dict[str, dict[str, Any]] = {
            "sample": {
                "prompts": select(self.config, "data.train_batch_size"),
                "group_size": select(self.config, f"{rollout}.n"),
                "temperature": float(select(self.config, f"{rollout}.temperature", 1.0)),
                "max_new_tokens": select(self.config, "data.max_response_length"),
            },
            "update": {
                "lr": float(select(self.config, f"{actor}.optim.lr", 1e-6)),
                "max_grad_norm": float(select(self.config, f"{actor}.grad_clip", 1.0)),
                "clip_low": float(select(self.config, f"{actor}.clip_ratio_low", 0.2)),
                "clip_high": float(select(self.config, f"{actor}.clip_ratio_high", 0.2)),
            },
        }
        if tau := select(self.config, f"{SECTION}.tau", 0.0):
            options["balance"] = {
                "tau": float(tau),
                "target": rollouts_per_batch(self.config),
                "max_age": select(self.config, f"{SECTION}.max_age", VerlAdapterOptions().max_age),
            }
        return {
            "schema": SCHEMA,
            "source": f"verl {version('verl')} with counterpoise.hosts.verl",
            "tokenizer": getattr(tokenizer, "name_or_path", "") or None,
            "notes": ["the displacement of a token is that of the whole update", *self.notes],
            "options": options,
        }

    def _metrics_line(
        self,
        result: metrics.IterationResult,
        verl_metrics: Mapping[str, Any],
        sampled: SampledForUpdate | None,
    ) -> dict[str, Any]:
        clock = metrics.StageClock()
        clock.lap("sample")
        buffer = sampled.buffer if sampled else None
        line = observed_metrics(metrics.metrics_record(result, buffer, clock))
        # verl logs its own times, so ours are null.
        for name in line:
            if name.endswith(("_seconds", "_per_second")):
                line[name] = None
        # verl takes every step of the plan, unless its gradient is no number.
        line |= {"steps": len(result.results), "skipped_steps": 0, "not_finite_steps": 0}
        aggregate = select(self.config, "actor_rollout_ref.actor.loss_agg_mode", "token-mean")
        for name, verl_name in VERL_METRICS.items():
            if name == "entropy" and aggregate not in MEAN_ENTROPIES:
                continue
            if verl_name in verl_metrics:
                value = float(np.mean(verl_metrics[verl_name]))
                line[name] = value if np.isfinite(value) else None
                # A mean over the update's steps: if it is not finite, at least one step was not.
                line["not_finite_steps"] |= int(not np.isfinite(value))
        # The monitor's shares of moved tokens are those of all rows, not of the decomposed ones.
        for name in MONITOR_METRICS:
            if f"{SECTION}/{name}" in verl_metrics:
                line[name] = float(verl_metrics[f"{SECTION}/{name}"])
        # Pushes are those of one step, displacements those of the update: with several steps they
        # cannot be compared.
        if len(result.results) > 1:
            line["proxy_agreement"] = None
        return line


def _step_result(
    rows: list[Row],
    step: tuple[int, ...],
    old_logprobs: list[Floats],
    known_logprobs: list[Floats] | None,
    measured: Mapping[int, tuple[Floats, Floats]],
) -> StepResult:
    """What is known of a step.

    `known_logprobs` are those of the weights that it starts from; None after the first step.
    `measured`: log-probabilities and pulls of the rows that the monitor measured.
    """
    used = tuple(i for i in step if rows[i].advantage and rows[i].num_tokens)
    unknown = [np.full(rows[i].num_tokens, np.nan, np.float32) for i in used]
    known = unknown if known_logprobs is None else [known_logprobs[i] for i in used]
    logprobs, pulls = (
        [
            measured[i][k] if i in measured else values_T
            for i, values_T in zip(used, values, strict=True)
        ]
        for k, values in enumerate((known, unknown))
    )
    return observed_step(
        used,
        logprobs=logprobs,
        old_logprobs=[old_logprobs[i] for i in used],
        advantages=[rows[i].advantages_T for i in used],
        pulls=pulls,
        tokens=sum(rows[i].num_tokens for i in step),
    )


def _measured_rows(
    couplings: Sequence[StepCoupling], row_of_index: Mapping[int, int]
) -> dict[int, tuple[Floats, Floats]]:
    """Log-probabilities and pulls of the rows that the monitor measured."""
    return {
        row_of_index[batch_index]: (logprobs_T, pulls_T)
        for coupling in couplings
        for batch_index, logprobs_T, pulls_T in zip(
            coupling.batch_indices, coupling.logprobs, coupling.pulls, strict=True
        )
    }


def _groups_of_rows(number: int, rows: Sequence[Row]) -> list[Group]:
    """The rollouts that update `number` trains on, by group."""
    groups: dict[str, list[Rollout]] = {}
    for row in sorted(rows, key=lambda row: (row.group, row.index)):
        groups.setdefault(row.group, []).append(row.content)
    return [Group(key, number, tuple(members)) for key, members in groups.items()]


def _sampled_groups(
    number: int, sampled: SampledForUpdate, tokenizer: Any, max_length: int
) -> list[Group]:
    """The rollouts that were sampled for update `number`, by group and in the ledger's order."""
    rollouts = [
        rollout
        for fields in sampled.sampled_fields
        for rollout in read_rollouts(fields, range(len(fields)), tokenizer, max_length)
    ]
    groups: dict[str, list[Rollout]] = {}
    for row, rollout in zip(sampled.sampled_rows.values(), rollouts, strict=True):
        groups.setdefault(f"{number}:{row.group}", []).append(rollout)
    return [Group(key, number, tuple(members)) for key, members in groups.items()]


def _as_sampled(row: Row, balanced_row: Row, update_of_group: Mapping[str, int]) -> Row:
    """A row under the name that its rollout has in the iteration that sampled it."""
    update = update_of_group[balanced_row.group]
    group = f"{update}:{balanced_row.group}"
    return replace(row, group=group, index=balanced_row.index, born=update)


def _named_drops(sampled: SampledForUpdate) -> dict[str, list[tuple[str, int]]]:
    return {
        reason: [(f"{sampled.update_of_group[group]}:{group}", index) for group, index in names]
        for reason, names in sampled.drops.items()
    }


def _displacements(batch: KVBatchMeta, data: Any, monitored: MonitoredUpdate) -> list[Floats]:
    """By row [T]: the change of every token's log-probability by the update."""
    is_row = [queue.is_real_row(tag) for tag in batch.tags]
    mask_RT = data["response_mask"]
    after, before = (
        list(compress(queue.trained_values(column, mask_RT), is_row))
        for column in (monitored.logprobs_after, monitored.logprobs_before)
    )
    return [new - old for new, old in zip(after, before, strict=True)]


def _with_displacement(
    trace: TokenTrace, result: metrics.IterationResult, displacements: Sequence[Floats]
) -> TokenTrace:
    """The table with the displacement of all its tokens, decomposed or not."""
    used = [row for step in result.results for row in step.rows]
    displacement = np.concatenate([displacements[row] for row in used]).astype(np.float32)
    return TokenTrace({**trace.columns, "displacement": displacement})


def _with_rows_of_plan(
    coupling: StepCoupling,
    plan: BatchPlan,
    row_of_index: Mapping[int, int],
    displacements: Sequence[Floats],
) -> StepMeasurement:
    """The workers' measurement, with rows as indices of the plan's step, and the displacement."""
    assert coupling.measurement is not None
    rows = [row_of_index[batch_index] for batch_index in coupling.batch_indices]
    position_in_step = {row: position for position, row in enumerate(plan.steps[coupling.step])}
    return replace(
        coupling.measurement,
        rows=tuple(position_in_step[row] for row in rows),
        displacement=np.concatenate([displacements[row] for row in rows]),
    )
