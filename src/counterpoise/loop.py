"""The algorithm, one call per stage. Start reading here.

    sample -> verify -> credit -> balance -> compose -> update (and monitor) -> store

An iteration samples once and takes one optimizer step for each step of its batch plan. With
reward balance on, a batch may wait for more rollouts; then an iteration takes no step at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.batch.compose import plan_batch
from counterpoise.batch.describe import describe_plan
from counterpoise.batch.dropped_rollouts import DropsByReason, find_drops
from counterpoise.config import RunConfig
from counterpoise.credit.assign import assign_advantages, assign_weights
from counterpoise.credit.reward_mixtures import configured_mixture
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.microscope import monitor_sampling
from counterpoise.microscope.monitor import Monitor, StepMeasurement
from counterpoise.model.fit_memory import GENERAL_REMEDY, explain_out_of_memory
from counterpoise.model.load import Policy
from counterpoise.run import follow_probes, metrics
from counterpoise.run.evaluate_heldout import evaluate, evaluation_due
from counterpoise.run.interrupts import postpone_interrupts
from counterpoise.run.lifecycle import finish_run, open_run, prepare_run
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import (
    RunState,
    bind_sampler,
    check_finite,
    replace_waiting_rows,
    save_state,
)
from counterpoise.run.write_iteration import IterationWriter
from counterpoise.sample.choose_prompts import EncodedPrompt, choose_prompts, remember_groups
from counterpoise.sample.collect import RolloutCollector, sample_groups
from counterpoise.seeds import seed_for
from counterpoise.store.folder import RunFolder
from counterpoise.store.resume import STRICT, ResumePermissions
from counterpoise.types import BatchPlan, Group, Prompt, Row, StepResult
from counterpoise.update.kl_control import with_kl_coefficients
from counterpoise.update.kl_penalty import (
    NO_PENALTIES,
    RewardPenalties,
    penalize_rewards,
    with_reference_logprobs,
)
from counterpoise.update.old_logprobs import (
    NO_SCORES,
    Scores,
    first_updating_step,
    score_before_update,
)
from counterpoise.update.reference import sync_teacher
from counterpoise.update.rules.bind import bind_rule, teacher_interval
from counterpoise.update.step import StepSettings, take_step
from counterpoise.verify.scores import Verifier

FINISHING_NOTICE = "finishing the iteration and saving a checkpoint"
MAX_SKIPPED_STEPS = 5  # not-finite steps in a row after which the run stops


@explain_out_of_memory(GENERAL_REMEDY)  # also while the model is loaded
def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    permissions: ResumePermissions = STRICT,
    observer: RunObserver | None = None,
) -> RunFolder:
    """Run `config` to its last iteration in the folder `out`; `permissions` are for `resume`."""
    observer = observer or RunObserver()
    prepared = prepare_run(config, out, observer, resume=resume)
    policy, heldout = prepared.policy, prepared.task.heldout
    opened = open_run(prepared, config, out, observer, resume=resume, permissions=permissions)
    with opened as (folder, state, verifier):
        with open_writer(folder, policy, config) as writer:
            observer.on_start(config, policy.num_parameters, state.iteration)
            evaluate(state, heldout, config, verifier, folder, observer)
            run_iterations(state, prepared.prompts, heldout, config, verifier, writer, observer)
        finish_run(policy, config, folder, observer)
    return folder


def run_iterations(
    state: RunState,
    train_set: Sequence[EncodedPrompt],
    heldout: Sequence[Prompt],
    config: RunConfig,
    verifier: Verifier,
    writer: IterationWriter,
    observer: RunObserver,
) -> None:
    """All iterations that are left, with checkpoints and evaluations where they are due.

    On Ctrl-C or SIGTERM the iteration is finished and a checkpoint saved; an evaluation is not
    finished, since a resumed run repeats it.
    """
    with postpone_interrupts(FINISHING_NOTICE) as interrupts:
        while state.iteration < config.loop.iterations:
            observer.on_iteration(iterate(state, train_set, config, verifier, writer, heldout))
            is_last = state.iteration == config.loop.iterations and config.store.model
            due = is_last or state.iteration % config.loop.checkpoint_every == 0
            if due:
                writer.wait()
                save_state(writer.folder, state, config)
            try:
                with interrupts.delivered():  # one that has waited for the iteration, too
                    if evaluation_due(state, heldout, config):
                        writer.wait()
                    evaluate(state, heldout, config, verifier, writer.folder, observer)
            except KeyboardInterrupt:
                if not due:
                    writer.wait()
                    save_state(writer.folder, state, config)
                raise


def iterate(
    state: RunState,
    train_set: Sequence[EncodedPrompt],
    config: RunConfig,
    verifier: Verifier,
    writer: IterationWriter,
    heldout: Sequence[Prompt] = (),
) -> dict[str, Any]:
    """One iteration; returns its line of metrics.jsonl. Only probes read `heldout`."""
    iteration, seed = state.iteration + 1, config.loop.seed
    clock = metrics.StageClock()

    state.teacher_weights = sync_teacher(
        state.policy, state.teacher_weights, teacher_interval(config.credit), iteration
    )
    sampler = bind_sampler(state)
    follow_probes.draw_if_due(state, sampler, heldout, config, verifier, clock)
    collector = RolloutCollector(sampler, config, verifier, clock.lap, iteration)
    choice = choose_prompts(train_set, config, iteration, state.prompt_memory)
    sampled = sample_groups(collector, choice, config, iteration)

    reader = make_policy_reader(state, config)
    penalties = penalize_rewards(sampled.groups, config.update, reader, state.initial_weights)
    credited = assign_credit(sampled.groups, config, reader, penalties)
    clock.lap("score")  # some credit methods score the rows; old log-probabilities reuse that below
    batch, drops = balance_batch(state, credited, config, iteration, sampled.dropped)
    plan = plan_batch(batch, config.batch, seed_for(seed, "compose", iteration)) if batch else None
    description = describe_plan(batch, plan) if plan else None
    clock.lap("compose")

    if plan:
        batch = with_old_logprobs(state, batch, plan, config, reader.scores)
        batch = with_reference_logprobs(reader, config.update, state.initial_weights, batch, plan)
    batch = with_kl_coefficients(batch, state.kl_control)
    clock.lap("score")
    outcome = observed_update(state, batch, plan, config, clock)

    groups = collector.collected_groups
    result = metrics.IterationResult(
        number=iteration,
        groups=groups,
        scores=collector.scores,
        credited_groups=credited,
        batch=batch,
        plan=plan,
        description=description,
        results=outcome.results,
        measurements=outcome.measurements,
        sampling_rounds=sampled.rounds,
        drops=drops,
        probes=outcome.probes,
        reward_kl=penalties.kl,
        prompt_memory=remember_groups(
            state.prompt_memory, choice, groups, config, iteration, outcome.influence
        ),
    )
    record = metrics.metrics_record(result, state.buffer, clock)
    writer.write(result, record)
    state.iteration = iteration
    return record


# -- the stages, bound to a run -----------------------------------------------------------------


def assign_credit(
    groups: Sequence[Group],
    config: RunConfig,
    reader: PolicyReader,
    penalties: RewardPenalties = NO_PENALTIES,
) -> list[list[Row]]:
    """Rows of every group. Token weights read the policy that sampled, before the update."""
    options = config.credit
    rows_by_group = assign_advantages(
        groups,
        options.name,
        configured_mixture(config),
        penalties=penalties.by_group,
        mask_truncated=config.update.mask_truncated,
    )
    return assign_weights(rows_by_group, options.weights, options.settings, reader)


def open_writer(folder: RunFolder, policy: Policy, config: RunConfig) -> IterationWriter:
    """The writer of the run's iterations."""
    return IterationWriter(folder, config.store, in_background=policy.device.type == "cuda")


def make_policy_reader(state: RunState, config: RunConfig) -> PolicyReader:
    """The view of the policy that credit methods get in this iteration."""
    iteration, seed = state.iteration + 1, config.loop.seed
    return PolicyReader(
        state.policy,
        config.sample.temperature,
        state.micro_batch,
        iteration,
        seed,
        state.passes,
        steering_rows=follow_probes.steering_rows(state, config),
        teacher=state.teacher_weights,
    )


def balance_batch(
    state: RunState,
    groups: list[list[Row]],
    config: RunConfig,
    now: int,
    without_spread: Sequence[Group] = (),
) -> tuple[list[Row], DropsByReason]:
    """The rows of this iteration's update, none until a balanced batch can be formed; the drops.

    `without_spread` are groups that dynamic sampling dropped before.
    """
    batch = new_rows = [row for group in groups for row in group]
    candidates = [*state.buffer.state(), *new_rows]
    if config.balance.tau:
        state.buffer.add(groups)
        balanced = state.buffer.take(now)
        batch = list(balanced.rows) if balanced else []
    elif config.batch.drop_silent:
        batch = [row for row in new_rows if row.sign]
    waiting, oldest = state.buffer.state(), now - config.balance.max_age
    return batch, find_drops(
        without_spread, candidates, batch, waiting, oldest, state.buffer.sign_of
    )


def with_old_logprobs(
    state: RunState,
    batch: list[Row],
    plan: BatchPlan,
    config: RunConfig,
    known_scores: Scores = NO_SCORES,
) -> list[Row]:
    """Score the rows that will be trained after the weights change: of the batch and the buffer."""
    if config.update.old_logprobs == "sampler":
        return batch
    reader = replace(make_policy_reader(state, config), scores=dict(known_scores))
    scored_batch, waiting = score_before_update(
        reader, batch, plan, state.buffer.state(), all_rows=config.update.trains_all_rows
    )
    replace_waiting_rows(state, waiting)
    return scored_batch


class UpdateOutcome(NamedTuple):
    """The steps of an iteration, and what the monitor and the probes measured."""

    results: list[StepResult]
    measurements: Sequence[StepMeasurement]
    probes: metrics.ProbeResult | None
    influence: dict[str, float]  # of each prompt on the probes that steer


def observed_update(
    state: RunState,
    batch: Sequence[Row],
    plan: BatchPlan | None,
    config: RunConfig,
    clock: metrics.StageClock,
) -> UpdateOutcome:
    """`update`, with the monitor and the probes if they are due; without a plan, no step."""
    monitor = make_monitor(state, batch, plan, config) if plan else None
    probes = follow_probes.prepare_probed_update(state, config, plan)
    results = update(state, batch, plan, config, monitor, probes) if plan else []
    if results:
        check_finite(state, state.iteration + 1)
    if state.kl_control:
        state.kl_control.update(batch, results, config.update.kl_estimator)
    clock.lap("update")
    clock.split("update", "monitor", monitor.seconds if monitor else 0.0)
    probe_result = probes.finish(clock) if probes else None
    influence = follow_probes.influence_by_prompt(probe_result, batch, plan)
    return UpdateOutcome(results, monitor.measurements if monitor else [], probe_result, influence)


def make_monitor(
    state: RunState, batch: Sequence[Row], plan: BatchPlan, config: RunConfig
) -> Monitor | None:
    """The monitor of this iteration, or None if it is off or not due.

    The groups whose pushes are stored are the first monitored ones with rows of both signs.
    """
    options, iteration = config.monitor, state.iteration + 1
    if not options.every or iteration % options.every:
        return None
    seed = seed_for(config.loop.seed, "monitor", iteration)
    monitored_names = monitor_sampling.choose_monitored_rows(
        batch,
        plan,
        state.micro_batch.size,
        options.tokens,
        seed,
        all_rows=config.update.trains_all_rows,
    )
    monitored_rows = [
        row for row in batch if monitored_names is None or row.name in monitored_names
    ]
    watched = monitor_sampling.first_mixed_groups(monitored_rows, options.watch)
    return Monitor(
        config.sample.temperature, state.micro_batch, watched, state.passes, monitored_names
    )


def update(
    state: RunState,
    batch: Sequence[Row],
    plan: BatchPlan,
    config: RunConfig,
    monitor: Monitor | None = None,
    probes: follow_probes.ProbedUpdate | None = None,
) -> list[StepResult]:
    """One optimizer step for each step of the plan."""
    results = []
    uses_sampler_logprobs = config.update.old_logprobs == "sampler"
    first_updating = first_updating_step(batch, plan, all_rows=config.update.trains_all_rows)
    rule = bind_rule(config, make_policy_reader(state, config), state.initial_weights)
    for s, step in enumerate(plan.steps):
        rows = [batch[i] for i in step]
        result = take_step(
            state.policy,
            state.optimizer,
            rows,
            StepSettings(
                config.update,
                temperature=config.sample.temperature,
                max_new_tokens=config.sample.max_new_tokens,
                micro_batch=state.micro_batch,
                passes=state.passes,
            ),
            observer=follow_probes.observe_step(monitor, probes, s, rows),
            on_policy=s == first_updating and not uses_sampler_logprobs,
            rule=rule.for_step(s) if rule else None,
        )
        if result.skipped != "no signal":  # such a step was never attempted
            state.skipped_in_a_row = state.skipped_in_a_row + 1 if result.skipped else 0
        if state.skipped_in_a_row >= MAX_SKIPPED_STEPS:
            raise PoiseError(
                f"{MAX_SKIPPED_STEPS} optimizer steps in a row had a loss or gradient that is not "
                "finite: start a new run with a lower update.lr; what was written before is intact"
            )
        # take_step() numbers rows from 0 within the step; records need their index in the batch.
        results.append(replace(result, rows=tuple(step[i] for i in result.rows)))
    return results
