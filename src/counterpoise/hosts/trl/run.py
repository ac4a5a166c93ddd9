"""`poise train X.toml --engine trl`: the run of a file through TRL's GRPO trainer.

One process, or as many as torch's launcher starts:

    python -m torch.distributed.run --nproc_per_node 4 -m counterpoise.cli train X.toml --engine trl
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from counterpoise.config import RunConfig
from counterpoise.files import alone, check_alone
from counterpoise.hosts.trl import host
from counterpoise.hosts.trl.run_options import arguments, checked
from counterpoise.hosts.trl.samples import Sample
from counterpoise.loop import conclude, encode
from counterpoise.model.fit_memory import GENERAL_REMEDY, explain_out_of_memory
from counterpoise.model.load import Policy, choose_device, choose_dtype, load_policy
from counterpoise.run.state import State, new_state, restore
from counterpoise.run.trackers.sending import tracked
from counterpoise.run.trackers.tracker import check_installed
from counterpoise.run.watch import Watch
from counterpoise.store.finished import check_unfinished
from counterpoise.store.folder import RunFolder
from counterpoise.store.resume import STRICT, ResumePermissions
from counterpoise.task.contamination.training_overlap import load_benchmarks, warn_of_overlap
from counterpoise.task.load import load_problems
from counterpoise.variants import VERIFIERS
from counterpoise.verify.scores import Verifier


def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    permissions: ResumePermissions = STRICT,
    watch: Watch | None = None,
) -> RunFolder:
    """As `loop.train`, by TRL."""
    rank, processes = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    host.require()
    checked(config, processes)
    check_installed(config.track.to)
    main, watch = rank == 0, (watch if rank == 0 and watch else Watch())
    if resume:
        check_unfinished(out, config)
        if main:
            check_alone(out)
    elif main:
        RunFolder.check_free(out)
    if config.loop.threads:
        torch.set_num_threads(config.loop.threads)
    policy = _load(config)
    task, benchmarks = load_problems(config), load_benchmarks(config.task.benchmarks)
    prompts = encode(policy, task.train, config, watch)
    folder = _folder(config, out, resume=resume, main=main)
    with alone(out) if main else nullcontext():  # the first process writes for all
        if resume:
            check_unfinished(out, config)  # it may have ended while the model was loaded
            state = restore(
                folder, policy, config, watch.say, heldout=task.heldout, permissions=permissions
            )
        else:
            state = new_state(policy, config)
        if main:
            _write_head(folder, config, policy)
            warn_of_overlap(task.train, benchmarks, folder, watch.say)
        options = config.verify
        verifier: Verifier = VERIFIERS.load(options.name)(options.timeout_seconds, options.workers)

        from counterpoise.hosts.trl.run_recorder import Recorder, Run

        recorder = Recorder(
            Run(config, prompts, task.heldout, verifier, folder, watch), state, main=main
        )
        with tracked(folder, config.track.to if main else [], watch.say):
            try:
                with explain_out_of_memory(GENERAL_REMEDY):
                    watch.started(config, policy.num_parameters, state.iteration)
                    recorder.judge()
                    if state.iteration < config.loop.iterations:
                        _train(recorder, processes)
            finally:
                verifier.close()
            if main:
                conclude(policy, config, folder, watch)
    return folder


class _Onlooker(RunFolder):
    """The folder for the other processes: the first one writes and forgets for all."""

    writes = False

    def rewind(self, iteration: int) -> None:
        pass


def _folder(config: RunConfig, out: Path, *, resume: bool, main: bool) -> RunFolder:
    if not main:
        return _Onlooker(out)
    return RunFolder.open(out) if resume else RunFolder.create(out, config)


def _load(config: RunConfig) -> Policy:
    """In float32: in half precision TRL computes over float32 weights."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return load_policy(replace(config.model, dtype="float32"))


def _train(recorder: Any, processes: int) -> None:
    from datasets import Dataset
    from transformers import PrinterCallback

    from counterpoise.hosts.trl import PoiseConfig
    from counterpoise.hosts.trl.run_trainer import Judge, RunTrainer, SampledEnough, example

    run, state = recorder.run, recorder.state
    config, policy = run.config, state.policy
    device = choose_device(config.model.device)
    given = arguments(
        config,
        longest_prompt=max(len(tokens) for _, tokens in run.train_set),
        half=choose_dtype(config.model.dtype, device) == torch.bfloat16,
        cpu=device.type == "cpu",
        processes=processes,
    )
    given["max_steps"] -= state.iteration * config.batch.steps
    rows = [example(prompt, policy) for prompt, _ in run.train_set]
    with tempfile.TemporaryDirectory(prefix="poise-trl-") as folder:
        trainer = RunTrainer(
            config,
            run.train_set,
            recorder,
            model=policy.model,
            reward_funcs=Judge(policy, run.verifier, run.train_set),
            args=PoiseConfig(output_dir=folder, **given),
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
            optimizers=(state.optimizer.inner, rising(state)),
        )
        trainer.remove_callback(PrinterCallback)
        _take_up(trainer, state)
        try:
            with recorder.finishing:
                with suppress(SampledEnough):
                    trainer.train()
                recorder.close()
        except KeyboardInterrupt:
            recorder.keep()
            raise


def rising(state: State) -> torch.optim.lr_scheduler.LambdaLR:
    """lr * min(1, (k + 1) / warmup_steps), k optimizer steps taken: as `update/optimizer.py`."""
    optimizer = state.optimizer
    rise = optimizer.config.warmup_steps
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer.inner, lambda _: min(1.0, (optimizer.steps + 1) / rise) if rise else 1.0
    )


def _take_up(trainer: Any, state: State) -> None:
    """The iteration, and what waits, of the checkpoint that `state` was restored from."""
    waiting = state.buffer.state()
    shelf = {}
    for row in waiting:
        tokens_T = torch.from_numpy(row.content.response_tokens).long()
        shelf[row.group, row.index] = Sample(
            prompt_S=torch.from_numpy(row.content.prompt_tokens).long(),
            completion_T=tokens_T,
            mask_T=torch.ones_like(tokens_T),
            extra={"old_per_token_logps": torch.from_numpy(row.old_logprobs)},  # scored by TRL
            trl_advantage=0.0,
        )
    trainer.take_up(state.iteration, shelf)
    trainer.skipped_in_a_row = state.skipped_in_a_row
    if trainer.planner.buffer is not None:
        bare = [replace(row, rollout=None, scored_T=None) for row in waiting]
        trainer.planner.take_up(bare, state.buffer.counts)


def _write_head(folder: RunFolder, config: RunConfig, policy: Policy) -> None:
    folder.write_config(config)
    if config.store.report or config.store.tokens:
        folder.write_vocabulary(policy.vocabulary_texts())
    told = {"schema": 1, "engine": "trl", "version": version("trl")}
    with folder.replacing("engine.json") as temporary:
        temporary.write_text(json.dumps(told), encoding="utf-8")
