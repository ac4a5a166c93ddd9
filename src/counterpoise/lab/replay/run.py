"""Replay stored rollouts: read -> credit -> compose -> virtual update -> store.

For each iteration n the weights are set to those of the model, w; then the stages of `loop.py` take
one optimizer step for each step of the plan, and the monitor measures them:

    w_n = w + update(plan_n, rollouts_n)        every iteration starts from the same w

So the numbers say what these rollouts would do to this model, not what a run did to it, unless the
model is the checkpoint that the iteration started from. Advantages, token weights and plans are the
trainer's own where they are stored; --set can replace the first two (`credit.py`). Old
log-probabilities are the model's own, so that the ratio of a plan's first step is 1, with two
exceptions: rows that waited in a buffer have the stored ones, and update.old_logprobs=sampler takes
the sampler's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, format_count
from counterpoise.files import folder_lock
from counterpoise.hosts.importing.formats import recognise_source
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.replay import alternatives
from counterpoise.lab.replay.credit import CreditChanges, credit_batch, credit_groups
from counterpoise.lab.replay.folder import (
    IMPORTED_FOLDER,
    ReplayRequest,
    make_replay_folder,
    open_replay,
    store_iterations,
)
from counterpoise.lab.replay.options import (
    fitting_steps,
    replay_config,
    set_options,
    stored_tables,
)
from counterpoise.lab.replay.source import RolloutFolder, StoredRollouts, holds_stored_rollouts
from counterpoise.lab.replay.start import ReplayedModel, StartingPoint, find_model, load_start
from counterpoise.loop import (
    make_monitor,
    make_policy_reader,
    update,
    with_old_logprobs,
)
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.model.adapters import find_base
from counterpoise.model.fit_memory import GENERAL_REMEDY, explain_out_of_memory
from counterpoise.model.load import Policy, find_model_folder
from counterpoise.model.scoring import micro_batches, score_tokens
from counterpoise.run import follow_probes, metrics
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import RunState, check_finite
from counterpoise.run.write_iteration import write_iteration
from counterpoise.seeds import seed_for
from counterpoise.store.finished import FINISHED_FILE, mark_finished
from counterpoise.store.folder import CONFIG, RunFolder
from counterpoise.store.rollout_files import check_vocabulary
from counterpoise.types import BatchPlan, Floats, Group, Rollout, Row, StepResult
from counterpoise.update.kl_penalty import (
    RewardPenalties,
    penalize_rewards,
    with_reference_logprobs,
)
from counterpoise.verify.scores import Scores, are_binary


class ReplayObserver(RunObserver):
    """Callbacks of a replay; the base class ignores them all."""

    def set_total(self, total: int, completed: int) -> None:
        """The number of iterations to replay, and how many of them are finished."""


@dataclass(frozen=True, slots=True, eq=False)
class VirtualUpdate:
    """What one update from the starting point did."""

    batch: list[Row]  # with old log-probabilities
    plan: BatchPlan
    results: list[StepResult]
    measurements: list[StepMeasurement]
    monitor_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A replay that is under way."""

    request: ReplayRequest
    config: RunConfig
    source: RolloutFolder
    state: RunState
    start: StartingPoint
    folder: RunFolder
    tau: float  # of RB among the alternatives
    credit_changes: CreditChanges
    observer: ReplayObserver

    @property
    def uses_stored_plans(self) -> bool:
        """Whether the trainer's own plans are replayed where they are stored."""
        return not self.request.composer


def replay(request: ReplayRequest, out: Path, observer: ReplayObserver | None = None) -> RunFolder:
    """Replay the requested iterations into the folder `out`, after those it already has."""
    observer = observer or ReplayObserver()
    model = find_model(request.model, request.device)
    is_stored = request.source is None and holds_stored_rollouts(request.rollouts)
    if not is_stored:
        recognise_source(request.rollouts, request.source)  # before anything is written
    make_replay_folder(out)
    with folder_lock(out), explain_out_of_memory(GENERAL_REMEDY):
        folder = open_replay(out, request, model)
        rollouts = (
            request.rollouts if is_stored else _import_rollouts(request, model, out, observer)
        )
        source = RolloutFolder(rollouts)
        numbers = source.choose_iterations(request.iterations)
        with_plan = not request.composer
        first_iteration = source.read(
            _first_planned(source, numbers) if with_plan else numbers[0], with_plan=with_plan
        )
        if request.steps and first_iteration.batch is not None:
            raise PoiseError(
                f"--steps {request.steps}: the run's own cut into steps is replayed; add "
                "--composer to cut the rows anew"
            )
        config = replay_config(request, model, rollouts, first_iteration)
        config = replace(config, loop=replace(config.loop, iterations=max(1, numbers[-1])))
        if config.loop.threads:
            torch.set_num_threads(config.loop.threads)
        state, start = load_start(model, config, request.template)
        state.probes = follow_probes.prepare_probes(state.policy, config, heldout=())
        for notice in _notices(request, model, config, state, start):
            observer.notify(notice)
        stored_balance = stored_tables(rollouts).get("balance", {})
        tau = float(stored_balance.get("tau") or alternatives.DEFAULT_TAU)
        changes = CreditChanges.from_options({*set_options(request)}, config, stored_balance)
        session = Replay(request, config, source, state, start, folder, tau, changes, observer)
        finished_numbers = _prepare_folder(session, observer)
        store_iterations(folder, numbers)
        observer.on_start(config, state.policy.num_parameters, 0)
        observer.set_total(len(numbers), len(finished_numbers.intersection(numbers)))
        for number in numbers:
            if number not in finished_numbers:
                observer.on_iteration(replay_iteration(session, number))
        mark_finished(folder, config)
        observer.on_finish(out)
    return folder


def replay_iteration(session: Replay, number: int) -> dict[str, Any]:
    """One iteration, stored; returns its line of metrics.jsonl."""
    config, state = session.config, session.state
    clock = metrics.StageClock()
    stored = session.source.read(number, with_plan=session.uses_stored_plans)
    stored = with_prompt_tokens(stored, state.policy, bool(session.request.template))
    check_vocabulary(stored.groups, len(state.policy.decoder.unembedding))
    clock.lap("sample")
    if stored.without_advantage and not session.credit_changes.advantages:
        session.observer.notify(
            f"iteration {number}: {format_count(stored.without_advantage, 'rollout')} without a "
            f"stored advantage, so those of all are computed from rewards ({config.credit.name})"
        )
    session.start.restore(state, config, number)

    reader = make_policy_reader(state, config)
    earlier_groups = stored.batch.earlier_groups if stored.batch else []
    penalties = penalize_rewards(
        [*stored.groups, *earlier_groups], config.update, reader, state.initial_weights
    )
    credited = credit_groups(stored, config, reader, session.credit_changes, penalties)
    clock.lap("score")
    batch, plan = plan_batch(stored, credited, session, penalties)
    description = describe_plan(batch, plan) if plan else None
    clock.lap("compose")

    untrained = score_untrained(session, batch) if plan else {}
    clock.lap("score")

    # The last iteration left other weights than this one starts from.
    state.probe_reading = None
    probes = follow_probes.prepare_probed_update(state, config, plan)
    virtual = take_virtual_update(session, batch, plan, probes) if plan else None
    clock.lap("update")
    clock.split("update", "monitor", virtual.monitor_seconds if virtual else 0.0)

    rewards = [rollout.reward for group in stored.groups for rollout in group.rollouts]
    result = metrics.IterationResult(
        number=number,
        groups=stored.groups,
        scores=Scores(rewards, graded=not are_binary(rewards)),
        credited_groups=credited,
        batch=virtual.batch if virtual else batch,
        plan=plan,
        description=description,
        results=virtual.results if virtual else [],
        measurements=virtual.measurements if virtual else [],
        probes=probes.finish(clock) if probes else None,
        reward_kl=penalties.kl,
    )
    record = metrics.metrics_record(result, state.buffer, clock)
    record["tokens_per_second"] = None  # nothing was sampled
    if virtual:
        session.folder.append("alternatives", compare_plans(session, virtual, batch, number))
    if virtual:
        result = replace(result, results=with_untrained(virtual, untrained))
    write_iteration(session.folder, result, record, config.store)
    session.folder.sync()
    return record


def with_prompt_tokens(
    stored: StoredRollouts, policy: Policy, applies_template: bool
) -> StoredRollouts:
    """The iteration with the tokens of prompts that were stored as text only.

    The policy's template is applied to chat messages, and with `applies_template` to all prompts.
    """

    def complete(rollout: Rollout) -> Rollout:
        if len(rollout.prompt_tokens):
            return rollout
        if not rollout.prompt and not rollout.messages:
            raise PoiseError(
                f"iteration {stored.number}: a rollout of {rollout.prompt_id} has neither "
                "prompt_tokens nor a prompt, so the model's input is unknown: choose other "
                "--iterations"
            )
        if applies_template or rollout.messages:
            return replace(rollout, prompt_tokens=policy.encode(rollout.problem))
        token_ids = policy.tokenizer.encode(rollout.prompt)
        return replace(rollout, prompt_tokens=policy.as_tokens(token_ids))

    def complete_groups(groups: Sequence[Group]) -> list[Group]:
        return [replace(group, rollouts=tuple(map(complete, group.rollouts))) for group in groups]

    stored = replace(stored, groups=complete_groups(stored.groups))
    if stored.batch is None:
        return stored
    batch = replace(
        stored.batch,
        rows=[replace(row, rollout=complete(row.content)) for row in stored.batch.rows],
        earlier_groups=complete_groups(stored.batch.earlier_groups),
    )
    return replace(stored, batch=batch)


def plan_batch(
    stored: StoredRollouts,
    credited: Sequence[Sequence[Row]],
    session: Replay,
    penalties: RewardPenalties,
) -> tuple[list[Row], BatchPlan | None]:
    """The rows of the update and their plan: the trainer's own, or composed here."""
    if stored.batch is not None:
        reader = make_policy_reader(session.state, session.config)
        rows = credit_batch(
            stored.batch, stored.groups, session.config, reader, session.credit_changes, penalties
        )
        return rows, stored.batch.plan
    if stored.made_no_update:
        return [], None
    batch, options = [row for rows in credited for row in rows], session.config.batch
    steps = session.request.steps or options.steps
    steps = fitting_steps(options.composer, steps, len(credited), len(batch))
    seed = seed_for(session.config.loop.seed, "compose", stored.number)
    return batch, compose(options.composer, batch, steps, seed)


def take_virtual_update(
    session: Replay,
    batch: list[Row],
    plan: BatchPlan,
    probes: follow_probes.ProbedUpdate | None = None,
) -> VirtualUpdate:
    """The update of `loop.iterate` on the weights as they are; the caller restores them."""
    state, config = session.state, session.config
    batch = with_old_logprobs(state, batch, plan, config)
    reader = make_policy_reader(state, config)
    batch = with_reference_logprobs(reader, config.update, state.initial_weights, batch, plan)
    monitor = make_monitor(state, batch, plan, config)
    results = update(state, batch, plan, config, monitor, probes)
    check_finite(state, state.iteration + 1)
    return VirtualUpdate(
        batch,
        plan,
        results,
        monitor.measurements if monitor else [],
        monitor.seconds if monitor else 0.0,
    )


def score_untrained(session: Replay, batch: Sequence[Row]) -> dict[int, tuple[Floats, Floats]]:
    """(log-probabilities, entropies) [T] of the rows that no step trains, by their batch index."""
    state, config = session.state, session.config
    all_rows = config.update.trains_all_rows
    indices = [i for i, row in enumerate(batch) if not row.has_loss(all_rows=all_rows)]
    rows = [batch[i] for i in indices]
    scores_by_index = {}
    # One pass after the other, so that the hidden states of all of them are never in memory.
    for members in micro_batches(rows, state.micro_batch.size):
        chunk = [rows[k] for k in members]
        temperature = config.sample.temperature
        scores = score_tokens(
            state.policy, chunk, temperature, state.micro_batch, state.passes.read
        )
        for k, logprobs_T, entropies_T in zip(
            members, scores.logprobs, scores.entropies, strict=True
        ):
            scores_by_index[indices[k]] = (logprobs_T, entropies_T)
    return scores_by_index


def with_untrained(
    virtual: VirtualUpdate, untrained: Mapping[int, tuple[Floats, Floats]]
) -> list[StepResult]:
    """The results with the rows without signal, so that tokens/ has all tokens of the batch.

    They have no advantage, no pull and no displacement; log-probability and entropy are those of
    the starting point. Metrics are computed without them.
    """
    results = []
    for step, result in zip(virtual.plan.steps, virtual.results, strict=True):
        added = [i for i in step if i in untrained and i not in result.rows]
        zeros = [np.zeros(virtual.batch[i].num_tokens, np.float32) for i in added]
        logprobs = [untrained[i][0] for i in added]
        results.append(
            replace(
                result,
                rows=(*result.rows, *added),
                logprobs=[*result.logprobs, *logprobs],
                old_logprobs=[*result.old_logprobs, *logprobs],
                advantages=[*result.advantages, *zeros],
                entropies=[*result.entropies, *(untrained[i][1] for i in added)],
                pulls=[*result.pulls, *zeros],
            )
        )
    return results


def compare_plans(
    session: Replay, virtual: VirtualUpdate, batch: Sequence[Row], number: int
) -> dict[str, Any]:
    """The line of alternatives.jsonl: the replayed plan beside those of QB and RB."""
    seed = seed_for(session.config.loop.seed, "compose", number)
    own_description = alternatives.describe_alternative(virtual.batch, virtual.plan)
    own_displacements = alternatives.displacement_by_row(
        virtual.batch, virtual.plan, virtual.measurements
    )
    line: dict[str, Any] = {
        "iteration": number,
        "own": own_description | alternatives.monitor_numbers(virtual.measurements),
    }
    candidates = alternatives.alternative_batches(
        batch, len(virtual.plan.steps), session.tau, number, seed
    )
    for name, (rows, plan) in candidates.items():
        line[name] = alternatives.describe_alternative(rows, plan)
        if session.request.compare:
            session.start.restore(session.state, session.config, number)
            other_update = take_virtual_update(session, rows, plan)
            displacements = alternatives.displacement_by_row(
                other_update.batch, other_update.plan, other_update.measurements
            )
            line[name] |= alternatives.monitor_numbers(other_update.measurements)
            line[name] |= alternatives.compare_displacements(own_displacements, displacements)
    return line


# -- before the first iteration ------------------------------------------------------------------


def _first_planned(source: RolloutFolder, numbers: Sequence[int]) -> int:
    """The first iteration with a plan, else the first one; the number of steps is read from it."""
    return next((number for number in numbers if number in source.plans), numbers[0])


def _import_rollouts(
    request: ReplayRequest, model: ReplayedModel, out: Path, observer: RunObserver
) -> Path:
    """Import another trainer's rollouts into the replay's folder, once."""
    imported = out / IMPORTED_FOLDER
    if not imported.is_dir():
        # The folder of an adapter need not have a tokenizer: its model has one.
        tokenizer = find_base(find_model_folder(model.config.name)) or model.config.name
        summary = import_run(request.rollouts, imported, request.source, tokenizer, request.reward)
        observer.notify(summary.terminal_text(imported))
    return imported


def _prepare_folder(session: Replay, observer: RunObserver) -> set[int]:
    """Write the options and the vocabulary, or rewind a replay that was stopped.

    Returns the iterations that are finished.
    """
    folder = session.folder
    records = folder.read("metrics")
    if (folder.path / CONFIG).is_file() and records:
        last_finished = records[-1]["iteration"]
        folder.rewind(last_finished)
        observer.notify(f"going on after iteration {last_finished}")
    (folder.path / FINISHED_FILE).unlink(missing_ok=True)
    folder.write_config(session.config)
    folder.write_vocabulary(session.state.policy.vocabulary_texts())
    return {record["iteration"] for record in records}


def _notices(
    request: ReplayRequest,
    model: ReplayedModel,
    config: RunConfig,
    state: RunState,
    start: StartingPoint,
) -> list[str]:
    """What a user should know about the numbers of this replay."""
    notices = list(state.policy.notices)
    notices.append(
        f"every iteration starts from the same weights, {model.name}, with "
        + ("the optimizer state of that checkpoint" if start.optimizer_state else "a new optimizer")
        + f" ({config.update.optimizer}, lr {config.update.lr:g})"
    )
    if config.update.kl and not model.checkpoint:
        notices.append("the KL is measured from the replayed model itself")
    if state.kl_control:
        notices.append(f"the coefficient of the KL is {config.update.kl:g}, as at the run's start")
    return notices
