"""What surrounds the iterations of a run: prepare it, open its folder, finish it.

`prepare_run` checks everything that can be checked cheaply before it loads the model, and all the
rest before the folder is created: a run that cannot work leaves nothing behind. `open_run` then
holds the folder and the processes that compute rewards until the run ends, however it ends.
`finish_run` saves the model of a run that reached its last iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from counterpoise.config import RunConfig
from counterpoise.credit.hints import check_reference_answers
from counterpoise.files import check_unlocked, folder_lock
from counterpoise.model.load import Policy, load_policy, save_policy
from counterpoise.run import follow_probes, metrics
from counterpoise.run.benchmarks import RunBenchmark, encode_benchmarks, load_run_benchmarks
from counterpoise.run.check_model import check_model
from counterpoise.run.decline import describe_decline
from counterpoise.run.encode_prompts import encode_prompts
from counterpoise.run.model_card import model_card
from counterpoise.run.observer import RunObserver
from counterpoise.run.probes import ProbeSet
from counterpoise.run.state import RunState, new_state, restore_state
from counterpoise.run.trackers.feed import track_run
from counterpoise.run.trackers.tracker import check_installed
from counterpoise.run.try_plugins import check_plugins
from counterpoise.sample.anchors import check_generic_texts
from counterpoise.sample.choose_prompts import EncodedPrompt
from counterpoise.sample.episodes import make_episode_player
from counterpoise.sample.kv_budget import check_cache_fits
from counterpoise.sample.positions import check_positions
from counterpoise.sample.sampler import Sampler
from counterpoise.store.finished import mark_finished, refuse_finished
from counterpoise.store.folder import MODEL, RunFolder
from counterpoise.store.resume import STRICT, ResumePermissions
from counterpoise.task.contamination.items import BenchmarkItems
from counterpoise.task.contamination.training_overlap import load_benchmarks, warn_of_overlap
from counterpoise.task.load import load_run_task
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.variants import SAMPLERS
from counterpoise.verify.make_verifier import make_verifier
from counterpoise.verify.reward_process import shared_process
from counterpoise.verify.scores import Verifier


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """All that a run needs besides its folder: checked, loaded and encoded."""

    task: TaskPrompts
    policy: Policy
    prompts: Sequence[EncodedPrompt]  # of the training set
    sampler: Sampler
    run_benchmarks: Sequence[RunBenchmark]  # evaluated beside held-out problems
    overlap_benchmarks: Sequence[BenchmarkItems]  # compared with the training set, once
    given_probes: ProbeSet | None  # of `monitor.probe_file`


def prepare_run(
    config: RunConfig, out: Path, observer: RunObserver, *, resume: bool = False
) -> PreparedRun:
    """Check the options, the data and the model, and load what they name; writes nothing."""
    if resume:
        refuse_finished(out, config)
        check_unlocked(out)
    else:
        RunFolder.check_free(out)
    # Everything that can be checked cheaply comes before the model is loaded.
    for reward_line in check_plugins(config):
        observer.notify(reward_line)
    check_installed(config.track.to)
    task, overlap_benchmarks = load_run_task(config), load_benchmarks(config.task.benchmarks)
    check_reference_answers(config.credit, task.train)
    check_generic_texts(task.train, config.sample)
    run_benchmarks = load_run_benchmarks(config)
    follow_probes.check_probes(config, task.heldout)
    if config.loop.threads:
        torch.set_num_threads(config.loop.threads)
    policy = load_policy(config.model)
    check_model(policy, config, observer.notify)
    task.announce(observer.notify)
    prompts = encode_prompts(policy, task.train, config, observer)
    check_positions(policy, prompts, config.sample, observer.notify)
    check_cache_fits(policy, prompts, config.sample)
    return PreparedRun(
        task=task,
        policy=policy,
        prompts=prompts,
        run_benchmarks=encode_benchmarks(policy, run_benchmarks, config.sample),
        overlap_benchmarks=overlap_benchmarks,
        given_probes=follow_probes.prepare_probes(policy, config, task.heldout),
        sampler=SAMPLERS.load(config.sample.engine)(policy, config),
    )


@contextmanager
def open_run(
    prepared: PreparedRun,
    config: RunConfig,
    out: Path,
    observer: RunObserver,
    *,
    resume: bool = False,
    permissions: ResumePermissions = STRICT,
) -> Iterator[tuple[RunFolder, RunState, Verifier]]:
    """The folder `out`, locked, with the state of a new run or of the last checkpoint in it."""
    policy, task = prepared.policy, prepared.task
    with closing(prepared.sampler):
        folder = RunFolder.open(out) if resume else RunFolder.create(out, config)
        with folder_lock(out):  # from before the logs are cut until the last file is written
            if resume:
                refuse_finished(out, config)  # it may have ended while the model was loading
                state = restore_state(
                    folder,
                    policy,
                    config,
                    observer.notify,
                    heldout=task.heldout,
                    permissions=permissions,
                )
                folder.write_config(config)  # the few options that may change have their new values
            else:
                folder.check_unused()
                state = new_state(policy, config)
            if config.store.report or config.store.tokens:
                folder.write_vocabulary(policy.vocabulary_texts())
            warn_of_overlap(task.train, prepared.overlap_benchmarks, folder, observer.notify)
            state.micro_batch.notify = state.prompts_per_draw.notify = observer.notify
            state.sample_function = prepared.sampler
            state.probes = state.probes or prepared.given_probes
            state.benchmarks = prepared.run_benchmarks
            if state.kl_control:
                state.kl_control.set_prompts(task.train)
            verifier = make_verifier(config.verify)
            state.episode_player = make_episode_player(config.task, verifier)
            with (
                track_run(folder, config.track.to, observer.notify),
                closing(shared_process(config.verify.reward_timeout_seconds)),  # of verify.also
                closing(verifier),
            ):
                yield folder, state, verifier


def finish_run(policy: Policy, config: RunConfig, folder: RunFolder, observer: RunObserver) -> None:
    """Save the model with its card and mark the run as finished.

    Before that, warn if no optimizer step was taken or if success ended below its start.
    """
    iterations, evaluations = folder.read("metrics"), folder.read("evaluations")
    warning = metrics.explain_no_step(iterations) or describe_decline(
        evaluations, iterations, config.update.lr, group_size=config.sample.group_size
    )
    if warning:
        observer.notify(warning)
    if config.store.model:
        with folder.explain_write_errors(MODEL):
            save_policy(
                policy,
                folder.path / MODEL,
                card=model_card(policy, config, folder, warning),
                before_rename=folder.write_model_checksums,
            )
    with folder.explain_write_errors("finished.json"):
        mark_finished(folder, config)
    observer.on_finish(folder.path)
