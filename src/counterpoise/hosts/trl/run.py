"""`poise train X.toml --engine trl`: run a file with TRL's GRPO trainer.

The run has one process, or as many as torch's launcher starts:

    python -m torch.distributed.run --nproc_per_node 4 -m counterpoise.cli train X.toml --engine trl
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from counterpoise.config import RunConfig
from counterpoise.files import check_unlocked, folder_lock
from counterpoise.hosts.trl import host
from counterpoise.hosts.trl.padding import (
    OLD_LOGPROBS,
    REFERENCE_LOGPROBS,
    UnpaddedRollout,
)
from counterpoise.hosts.trl.run_options import check_options, trainer_arguments
from counterpoise.hosts.trl.vllm_engine import (
    check_vllm,
    close_engine,
    starting_engine,
    vllm_token_fields,
)
from counterpoise.model.fit_memory import explain_out_of_memory
from counterpoise.model.load import Policy, choose_device, choose_dtype, load_policy
from counterpoise.run import follow_probes
from counterpoise.run.check_model import check_model
from counterpoise.run.encode_prompts import encode_prompts
from counterpoise.run.lifecycle import finish_run
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import RunState, new_state, restore_state
from counterpoise.run.trackers.feed import track_run
from counterpoise.run.trackers.tracker import check_installed
from counterpoise.run.try_plugins import check_plugins
from counterpoise.sample.native import check_requests
from counterpoise.sample.positions import check_positions
from counterpoise.store.finished import refuse_finished
from counterpoise.store.folder import Engine, RunFolder
from counterpoise.store.resume import STRICT, ResumePermissions
from counterpoise.task.contamination.training_overlap import load_benchmarks, warn_of_overlap
from counterpoise.task.load import load_run_task
from counterpoise.verify.make_verifier import make_verifier

# TRL's passes do not shrink by themselves.
OUT_OF_MEMORY_REMEDY = (
    "continue with --resume and --set update.micro_tokens=N, lower than before, or "
    "monitor.every=0; or start again with fewer sample.prompts, a lower sample.max_new_tokens or "
    "a smaller model"
)


@explain_out_of_memory(OUT_OF_MEMORY_REMEDY)  # also while the model is loaded
def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    permissions: ResumePermissions = STRICT,
    observer: RunObserver | None = None,
) -> RunFolder:
    """Do what `loop.train` does, with TRL as the trainer."""
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    is_main = rank == 0
    check_options(config, processes)
    check_installed(config.track.to)
    _check_folder(config, out, resume=resume, is_main=is_main)
    # TRL imports vLLM, which has to be set up before that.
    if config.sample.engine == "vllm":
        check_vllm("sample.engine=vllm", choose_device(config.model.device).type)
    host.require_trl()
    observer = observer if is_main and observer else RunObserver()
    for reward_line in check_plugins(config):
        observer.notify(reward_line)
    if config.loop.threads:
        torch.set_num_threads(config.loop.threads)
    policy = _load_float32(config)
    check_model(policy, config, observer.notify)
    check_requests(policy)
    task, benchmarks = load_run_task(config), load_benchmarks(config.task.benchmarks)
    task.announce(observer.notify)
    prompts = encode_prompts(policy, task.train, config, observer)
    check_positions(policy, prompts, config.sample, observer.notify)
    given_probes = follow_probes.prepare_probes(policy, config, task.heldout)
    folder = _open_folder(config, out, resume=resume, is_main=is_main)
    with folder_lock(out) if is_main else nullcontext():  # process 0 writes for all
        if resume:
            # Another process may have finished the run while the model was being loaded.
            refuse_finished(out, config)
            state = restore_state(
                folder,
                policy,
                config,
                observer.notify,
                heldout=task.heldout,
                permissions=permissions,
            )
        else:
            if is_main:
                folder.check_unused()
            state = new_state(policy, config)
        state.probes = state.probes or given_probes
        state.micro_batch.notify = state.prompts_per_draw.notify = observer.notify
        if is_main:
            _write_header(folder, config, policy)
            warn_of_overlap(task.train, benchmarks, folder, observer.notify)
        verifier = make_verifier(config.verify)

        # Imported here: they import TRL, which takes seconds and needs host.require_trl first.
        from counterpoise.hosts.trl.run_recorder import RecordedRun, RunRecorder

        recorder = RunRecorder(
            RecordedRun(config, prompts, task.heldout, verifier, folder, observer),
            state,
            is_main=is_main,
        )
        with track_run(folder, config.track.to if is_main else [], observer.notify):
            try:
                observer.on_start(config, policy.num_parameters, state.iteration)
                recorder.evaluate_heldout()
                if state.iteration < config.loop.iterations:
                    _train_with_trl(recorder, processes)
            finally:
                verifier.close()
            if is_main:
                finish_run(policy, config, folder, observer)
    return folder


def _check_folder(config: RunConfig, out: Path, *, resume: bool, is_main: bool) -> None:
    """Refuse a folder that cannot be used, before TRL and vLLM are imported."""
    if resume:
        refuse_finished(out, config)
        if is_main:
            check_unlocked(out)
    elif is_main:
        RunFolder.check_free(out)


class _ReadOnlyFolder(RunFolder):
    """The run folder on the other processes: only process 0 writes to it and rewinds it."""

    writable = False

    def rewind(self, iteration: int) -> None:
        pass


def _open_folder(config: RunConfig, out: Path, *, resume: bool, is_main: bool) -> RunFolder:
    if not is_main:
        return _ReadOnlyFolder(out)
    return RunFolder.open(out) if resume else RunFolder.create(out, config, trl_engine())


def _load_float32(config: RunConfig) -> Policy:
    """Load the model in float32: TRL's half precision is mixed precision over float32 weights."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return load_policy(replace(config.model, dtype="float32"))


def _train_with_trl(recorder: Any, processes: int) -> None:
    from datasets import Dataset
    from transformers import PrinterCallback

    from counterpoise.hosts.trl import PoiseConfig
    from counterpoise.hosts.trl.run_trainer import (
        IterationsExhausted,
        RunTrainer,
        VerifierReward,
        dataset_row,
    )

    run, state = recorder.run, recorder.state
    config, policy = run.config, state.policy
    device = choose_device(config.model.device)
    arguments = trainer_arguments(
        config,
        longest_prompt=max(len(tokens) for _, tokens in run.train_set),
        half=choose_dtype(config.model.dtype, device) == torch.bfloat16,
        cpu=device.type == "cpu",
        processes=processes,
        end_tokens=policy.end_tokens,
    )
    # TRL counts steps from 0 again when a run is resumed.
    arguments["max_steps"] -= state.iteration * config.batch.steps
    rows = [dataset_row(prompt, policy) for prompt, _ in run.train_set]
    uses_vllm = config.sample.engine == "vllm"
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="poise-trl-"))
        options, dataset = PoiseConfig(output_dir=folder, **arguments), Dataset.from_list(rows)
        with starting_engine(policy) if uses_vllm else nullcontext():
            trainer = RunTrainer(
                config,
                run.train_set,
                recorder,
                model=policy.model,
                reward_funcs=VerifierReward(run, state),
                args=options,
                train_dataset=dataset,
                processing_class=policy.tokenizer,
                optimizers=(state.optimizer.inner, native_schedule(state)),
            )
        if uses_vllm:
            stack.callback(close_engine, trainer)
        trainer.remove_callback(PrinterCallback)
        _restore_waiting(trainer, state)
        try:
            with recorder.interrupt_guard:
                with suppress(IterationsExhausted):
                    trainer.train()
                recorder.close_iteration()
        except KeyboardInterrupt:
            recorder.save_unsaved()
            raise


def native_schedule(state: RunState) -> torch.optim.lr_scheduler.LambdaLR:
    """The learning rate of `update/schedules.py` after k optimizer steps.

    k is the native optimizer's count, which leaves skipped steps out; the schedule's own does not.
    """
    optimizer = state.optimizer
    return torch.optim.lr_scheduler.LambdaLR(optimizer.inner, lambda _: optimizer.schedule_factor())


def _restore_waiting(trainer: Any, state: RunState) -> None:
    """Give the trainer the iteration and the waiting rows that `state` was restored with."""
    waiting = state.buffer.state()
    rollouts_by_key = {}
    for row in waiting:
        tokens_T = torch.from_numpy(row.content.response_tokens).long()
        # TRL's trainer scored them before they were saved.
        logprobs = {
            OLD_LOGPROBS: row.old_logprobs,
            REFERENCE_LOGPROBS: row.reference_logprobs_T,
            **vllm_token_fields(row, trainer.run),
        }
        rollouts_by_key[row.group, row.index] = UnpaddedRollout(
            prompt_S=torch.from_numpy(row.content.prompt_tokens).long(),
            completion_T=tokens_T,
            mask_T=torch.ones_like(tokens_T),
            token_fields={
                name: torch.from_numpy(logprobs_T)
                for name, logprobs_T in logprobs.items()
                if logprobs_T is not None
            },
            trl_advantage=0.0,
        )
    trainer.resume_after(state.iteration, rollouts_by_key)
    trainer.skipped_in_a_row = state.skipped_in_a_row
    if trainer.planner.buffer is not None:
        bare_rows = [
            replace(row, rollout=None, trainer_logprobs_T=None, reference_logprobs_T=None)
            for row in waiting
        ]
        trainer.planner.restore_buffer(bare_rows, state.buffer.counts)


def _write_header(folder: RunFolder, config: RunConfig, policy: Policy) -> None:
    folder.write_config(config)
    if config.store.report or config.store.tokens:
        folder.write_vocabulary(policy.vocabulary_texts())
    folder.write_engine(trl_engine())  # a resumed run may have another version


def trl_engine() -> Engine:
    return Engine("trl", version("trl"))
