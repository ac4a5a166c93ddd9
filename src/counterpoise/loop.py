"""The algorithm, one call per stage. Start reading here.

    sample -> verify -> credit -> balance -> compose -> update (and look) -> store

An iteration samples once and takes one optimizer step for each step of its batch plan. With
reward balance on, a batch may wait for more rollouts; then an iteration takes no step at all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from counterpoise import metrics
from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe
from counterpoise.config import RunConfig
from counterpoise.contamination.training import load_benchmarks, warn_of_overlap
from counterpoise.credit.assign import assign
from counterpoise.credit.gather import gather
from counterpoise.credit.view import Reader
from counterpoise.errors import PoiseError
from counterpoise.evaluate.heldout import judge
from counterpoise.evaluate.settings import settings_of
from counterpoise.microscope.monitor import Monitor, first_mixed
from counterpoise.policy.load import Policy, load_policy, save_policy
from counterpoise.sample import SAMPLERS
from counterpoise.sample.native import sample as native
from counterpoise.sample.sampler import Sample, Sampler
from counterpoise.seeds import rng_for, seed_for
from counterpoise.state import State, new_state, refill, restore, save
from counterpoise.store.finished import check_unfinished, finish
from counterpoise.store.folder import RunFolder
from counterpoise.store.iteration import write_iteration
from counterpoise.task.load import load_task
from counterpoise.types import BatchPlan, Group, Ints, Prompt, Response, Row, StepResult
from counterpoise.update.fit import PROMPTS, MicroBatch, explained
from counterpoise.update.old_logprobs import first_step, score_before_update
from counterpoise.update.step import take_step
from counterpoise.verify import VERIFIERS
from counterpoise.verify.scores import Verifier
from counterpoise.watch import Watch

MAX_SKIPPED = 5  # steps in a row that are not finite before the run stops
NO_MEMORY = (  # outside the passes of the update, which grow smaller by themselves
    "go on with --resume and --set monitor.every=0, or start anew with fewer sample.prompts, "
    "a lower sample.max_new_tokens or a smaller model"
)
Encoded = tuple[Prompt, Ints]  # a prompt and its tokens


def train(
    config: RunConfig, out: Path, *, resume: bool = False, watch: Watch | None = None
) -> RunFolder:
    """Run `config` to its last iteration in the folder `out`."""
    watch = watch or Watch()
    if resume:
        check_unfinished(out, config)
    else:
        RunFolder.check_free(out)
    if config.loop.threads:
        torch.set_num_threads(config.loop.threads)
    policy = load_policy(config.model)
    task, benchmarks = load_task(config.task), load_benchmarks(config.task.benchmarks)
    prompts = encode(policy, task.train, config, watch)
    sampler: Sampler = SAMPLERS.load(config.sample.engine)(policy, config)
    folder = RunFolder.open(out) if resume else RunFolder.create(out, config)
    if config.store.report or config.store.tokens:
        folder.write_vocabulary(policy.pieces())
    warn_of_overlap(task.train, benchmarks, folder, watch.say)
    if resume:
        state = restore(folder, policy, config, watch.say)
        folder.write_config(config)  # the few options that may change have their new values
    else:
        state = new_state(policy, config)
    state.micro.tell = state.drawn.tell = watch.say
    state.sample = sampler
    options = config.verify
    verifier: Verifier = VERIFIERS.load(options.name)(options.timeout_seconds, options.workers)
    try:
        with explained(NO_MEMORY):
            watch.started(config, policy.num_parameters, state.iteration)
            evaluate(state, task.heldout, config, verifier, folder, watch)
            while state.iteration < config.loop.iterations:
                watch.iterated(iterate(state, prompts, config, verifier, folder))
                last = state.iteration == config.loop.iterations and config.store.model
                if last or state.iteration % config.loop.checkpoint_every == 0:
                    save(folder, state, config.loop.keep_checkpoints)
                evaluate(state, task.heldout, config, verifier, folder, watch)
    finally:
        verifier.close()
        sampler.close()
    conclude(policy, config, folder, watch)
    return folder


def iterate(
    state: State,
    train_set: Sequence[Encoded],
    config: RunConfig,
    verifier: Verifier,
    folder: RunFolder,
) -> dict[str, Any]:
    """One iteration; returns its line of metrics.jsonl."""
    now, seed = state.iteration + 1, config.loop.seed
    clock = metrics.Clock()

    prompts = pick_prompts(train_set, config, now)
    responses_PG = draw(state.policy, prompts, config, now, state.drawn, state.sample)
    clock.lap("sample")

    texts = [response.text for responses in responses_PG for response in responses]
    answers = [prompt.answer for prompt, _ in prompts for _ in range(config.sample.group_size)]
    scores = verifier.score(texts, answers)
    groups = gather(prompts, responses_PG, scores.rewards, now)
    clock.lap("verify")

    credited = credit(state, groups, config)
    batch = balance(state, credited, config, now)
    rule = config.batch
    plan = (
        compose(rule.composer, batch, rule.steps, seed_for(seed, "compose", now)) if batch else None
    )
    description = describe(batch, plan) if plan else None
    clock.lap("compose")

    if plan:
        batch = with_old_logprobs(state, batch, plan, config)
    clock.lap("score")

    monitor = watch_groups(state, batch, config)
    results = update(state, batch, plan, config, monitor) if plan else []
    clock.lap("update")
    clock.split("update", "monitor", monitor.seconds if monitor else 0.0)

    views = monitor.views if monitor else []
    made = metrics.Iteration(
        now, groups, scores, credited, batch, plan, description, results, views
    )
    record = metrics.record(made, state.buffer, clock)
    write_iteration(folder, made, record, config.store)
    state.iteration = now
    return record


# -- the stages, bound to a run -----------------------------------------------------------------


def encode(
    policy: Policy, prompts: Sequence[Prompt], config: RunConfig, watch: Watch
) -> list[Encoded]:
    """Training prompts with their tokens; those too long are left out, and that is said."""
    encoded = [(prompt, policy.encode(prompt.problem)) for prompt in prompts]
    limit, wanted = config.sample.max_prompt_tokens, config.sample.prompts
    kept = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) <= limit]
    if dropped := len(encoded) - len(kept):
        watch.say(
            f"{dropped} of {len(encoded)} prompts are longer than "
            f"sample.max_prompt_tokens={limit}: left out"
        )
    if len(kept) < wanted:
        raise PoiseError(
            f"{len(kept)} training prompts cannot fill an iteration of {wanted}: "
            "lower sample.prompts"
        )
    return kept


def pick_prompts(train_set: Sequence[Encoded], config: RunConfig, now: int) -> list[Encoded]:
    """The prompts of iteration `now`: shuffled epochs, an incomplete last iteration left out."""
    P = config.sample.prompts
    epoch, place = divmod(now - 1, len(train_set) // P)
    order = rng_for(config.loop.seed, "prompts", epoch).permutation(len(train_set))
    return [train_set[i] for i in order[place * P : (place + 1) * P]]


def draw(
    policy: Policy,
    prompts: Sequence[Encoded],
    config: RunConfig,
    now: int,
    at_once: MicroBatch | None = None,
    sample: Sample = native,
) -> list[list[Response]]:
    """G responses for every prompt, each from a seed of its own; a part at a time if need be."""
    P, G = len(prompts), config.sample.group_size
    seeds_PG = [
        [seed_for(config.loop.seed, "sample", now, p * G + g) for g in range(G)] for p in range(P)
    ]
    tokens = [tokens for _, tokens in prompts]

    def parts(size: int) -> list[list[Response]]:
        drawn: list[list[Response]] = []
        for start in range(0, P, size):
            part = slice(start, start + size)
            drawn += sample(policy, tokens[part], seeds_PG[part], config.sample)
        return drawn

    at_once = at_once or MicroBatch(P, what=PROMPTS)
    return at_once.fitting(parts, least=1, most=P, remedy=NO_MEMORY)


def credit(state: State, groups: Sequence[Group], config: RunConfig) -> list[list[Row]]:
    """Rows of every group; weights see the policy that sampled."""
    options, now = config.credit, state.iteration + 1
    reader = Reader(state.policy, config.sample.temperature, state.micro, now, config.loop.seed)
    return assign(groups, options.name, options.weights, options.settings, reader)


def balance(state: State, groups: list[list[Row]], config: RunConfig, now: int) -> list[Row]:
    """The rows of this iteration's update; none while no balanced batch can be taken."""
    if config.balance.tau == 0:
        return [row for group in groups for row in group]
    state.buffer.add(groups)
    taken = state.buffer.take(now)
    return list(taken.rows) if taken else []


def with_old_logprobs(
    state: State, batch: list[Row], plan: BatchPlan, config: RunConfig
) -> list[Row]:
    """Score what is trained after the weights have changed: in the batch, and in the buffer."""
    if config.update.old_logprobs == "sampler":
        return batch
    scored, waiting = score_before_update(
        state.policy, batch, plan, state.buffer.state(), config.sample.temperature, state.micro,
        state.passes,
    )  # fmt: skip
    refill(state, waiting)
    return scored


def watch_groups(state: State, batch: Sequence[Row], config: RunConfig) -> Monitor | None:
    """The microscope for this iteration, on its first groups with both signs; None: not now."""
    every = config.monitor.every
    if not every or (state.iteration + 1) % every:
        return None
    watched = first_mixed(batch, config.monitor.watch)
    return Monitor(config.sample.temperature, state.micro, watched, state.passes)


def update(
    state: State,
    batch: Sequence[Row],
    plan: BatchPlan,
    config: RunConfig,
    monitor: Monitor | None = None,
) -> list[StepResult]:
    """One optimizer step for each step of the plan."""
    results = []
    sampled = config.update.old_logprobs == "sampler"
    first = first_step(batch, plan)
    for s, step in enumerate(plan.steps):
        result = take_step(
            state.policy,
            state.optimizer,
            [batch[i] for i in step],
            config.update,
            temperature=config.sample.temperature,
            max_new_tokens=config.sample.max_new_tokens,
            look=monitor,
            on_policy=s == first and not sampled,
            micro=state.micro,
            passes=state.passes,
        )
        if result.skipped != "no signal":  # such a step was never tried
            state.skipped_in_a_row = state.skipped_in_a_row + 1 if result.skipped else 0
        if state.skipped_in_a_row >= MAX_SKIPPED:
            raise PoiseError(
                f"{MAX_SKIPPED} optimizer steps in a row had a loss or gradient that is not "
                "finite: lower update.lr; the run can be resumed from its last checkpoint"
            )
        results.append(replace(result, rows=tuple(step[i] for i in result.rows)))
    return results


def evaluate(
    state: State,
    heldout: Sequence[Prompt],
    config: RunConfig,
    verifier: Verifier,
    folder: RunFolder,
    watch: Watch,
) -> None:
    """Held-out success before training, after it, and every `evaluate.every` iterations.

    Every setting samples with the same seeds, and a resumed run repeats none that was judged.
    """
    options, at, seed = config.evaluate, state.iteration, config.loop.seed
    due = at in (0, config.loop.iterations) or (options.every and at % options.every == 0)
    prompts = heldout[: options.prompts]
    if not due or not prompts:
        return
    judged = [line for line in folder.read("evaluations") if line["iteration"] == at]
    for setting in settings_of(options.settings, config.sample)[len(judged) :]:
        start = time.perf_counter()
        sampled = setting.of(config.sample)
        success = judge(
            state.policy, prompts, options.samples, sampled, verifier, seed, state.sample
        )
        seconds = time.perf_counter() - start
        folder.append(
            "evaluations",
            {"iteration": at, **asdict(setting), **asdict(success), "evaluate_seconds": seconds},
        )
        watch.evaluated(at, success, setting)


def conclude(policy: Policy, config: RunConfig, folder: RunFolder, watch: Watch) -> None:
    """The model, and the mark of a run that came to its end."""
    if not any(record["steps"] for record in folder.read("metrics")):
        watch.say(
            "no optimizer step was taken: no batch had signal, or none was balanced; "
            "lower balance.target or balance.tau, or sample more"
        )
    if config.store.model:
        with folder.writing("model"):
            save_policy(policy, folder.path / "model")
    with folder.writing("finished.json"):
        finish(folder, config)
    watch.finished(folder.path)
