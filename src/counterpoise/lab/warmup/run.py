"""Run `poise warmup`: load or build a model, train it on worked solutions, save and evaluate it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write, remove_path
from counterpoise.lab.warmup.resume import WarmupCheckpoints, check_unfinished, lock_unfinished
from counterpoise.lab.warmup.scratch import build_model, build_tokenizer
from counterpoise.lab.warmup.second_turns import second_turns
from counterpoise.lab.warmup.supervise import TrainingHooks, check_solutions, supervise
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import (
    Policy,
    choose_device,
    load_policy,
    save_policy,
    wrap_model,
)
from counterpoise.run.heldout import HeldoutSuccess, evaluate_policy
from counterpoise.run.interrupts import postpone_interrupts
from counterpoise.sample.collect import SamplerBinding
from counterpoise.sample.episodes import make_episode_player
from counterpoise.task.load import load_run_task
from counterpoise.terminal import TerminalConsole
from counterpoise.types import Prompt
from counterpoise.verify.make_verifier import make_verifier
from counterpoise.verify.plugin_reward import training_context
from counterpoise.verify.scores import Verifier

LOG_LINES = 10  # progress lines, if the output is not a terminal
SAVING = "saving the model"


def run_warmup(config: RunConfig, out: Path, *, resume: bool = False) -> None:
    """Train, save to `out`, and evaluate the saved model; warmup.json there records the result."""
    # Everything that can be checked is checked before the model is loaded and trained.
    check_out_folder(out)
    console = TerminalConsole()
    check_unfinished(out, partial(console.print, markup=False), resume=resume)
    task = load_run_task(config)
    task.announce(partial(console.print, markup=False))
    check_solutions(task.train)
    prompts = task.heldout[: config.evaluate.prompts]
    check_target(config, prompts)
    policy = load_start_policy(config)
    console.print(
        f"{policy.name}: {policy.num_parameters / 1e6:.2f} M parameters on {policy.device}",
        markup=False,
    )
    verifier = make_verifier(config.verify)
    try:
        with lock_unfinished(out) as unfinished:
            record = train_with_progress(
                policy, task.train, prompts, config, verifier, console, unfinished
            )
            # An interrupt waits until the model is saved and its checkpoints are removed.
            with postpone_interrupts(SAVING):
                save_policy(policy, out, torch.bfloat16)
                write_record(out, record, config)
                remove_path(unfinished)
                console.print(f"saved  {out}", markup=False)
        if prompts:  # evaluate the saved bfloat16 weights, not the float32 ones in memory
            saved_policy = load_policy(replace(config.model, name=str(out)))
            success = measure_success(saved_policy, prompts, config, verifier)
            console.print(describe_success(success, config), markup=False, highlight=False)
            write_record(out, {**record, "saved": success.to_record()}, config)
    finally:
        verifier.close()


def write_record(out: Path, record: Mapping[str, Any], config: RunConfig) -> None:
    with atomic_write(out / "warmup.json") as temporary:
        temporary.write_text(json.dumps({**record, "config": asdict(config)}, indent=1))


def train_with_progress(
    policy: Policy,
    train_set: Sequence[Prompt],
    prompts: Sequence[Prompt],
    config: RunConfig,
    verifier: Verifier,
    console: Console,
    unfinished: Path,
) -> dict[str, Any]:
    """Train under a progress bar; returns the number of steps and all evaluations.

    Training resumes from the newest checkpoint in `unfinished`, if there is one.
    """
    until, steps = config.warmup.until, config.warmup.steps
    evaluations: list[dict[str, Any]] = []
    with progress_bar(console) as bar:
        log = partial(bar.console.print, markup=False, highlight=False)
        progress_task = bar.add_task("", total=steps, loss=float("nan"))

        def show_step(step: int, loss: float) -> None:
            bar.update(progress_task, completed=step, loss=loss)
            if not console.is_terminal and step % max(1, steps // LOG_LINES) == 0:
                console.print(f"step {step}/{steps}: loss {loss:.3f}", highlight=False)

        def evaluate_step(step: int) -> bool:
            if not prompts:
                return False
            if evaluations and evaluations[-1]["step"] == step:  # evaluated before it was stopped
                return bool(until) and evaluations[-1]["mean"] >= until
            success = measure_success(policy, prompts, config, verifier)
            evaluations.append({"step": step, **success.to_record()})
            log(f"step {step}: {describe_success(success, config)}")
            return bool(until) and success.mean >= until

        micro = FittedSize(config.update.micro_tokens, notify=log)
        steps_taken = supervise(
            policy,
            [
                *((prompt, None) for prompt in train_set),
                *second_turns(policy, train_set, config, verifier),
            ],
            config.warmup,
            config.loop.seed,
            micro,
            checkpointing=config.update.checkpointing,
            hooks=TrainingHooks(
                progress=show_step,
                should_stop=evaluate_step,
                checkpoints=WarmupCheckpoints(unfinished, policy, micro, config, evaluations, log),
            ),
        )
    if until and evaluations[-1]["mean"] < until:
        console.print(
            f"success stayed below warmup.until={until:g} in {steps_taken} steps: "
            "raise warmup.steps or warmup.lr, or lower task.slips or task.levels"
        )
    return {"steps": steps_taken, "judged": evaluations}


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("warm-up"),
        MofNCompleteColumn(),
        BarColumn(24),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


def measure_success(
    policy: Policy, prompts: Sequence[Prompt], config: RunConfig, verifier: Verifier
) -> HeldoutSuccess:
    options = config.evaluate
    return evaluate_policy(
        SamplerBinding(policy, episodes=make_episode_player(config.task, verifier)),
        prompts,
        options.samples,
        config.sample,
        verifier,
        config.loop.seed,
        training_context(config, 0),
    )


def describe_success(success: HeldoutSuccess, config: RunConfig) -> str:
    return (
        f"held-out success at temperature {config.sample.temperature:g}: {success}, "
        f"pass@{success.samples} {100 * success.pass_any:.1f} %, "
        f"mixed groups of {success.samples}: {100 * success.mixed:.1f} %"
    )


def check_out_folder(out: Path) -> None:
    """Raise an error now if `out` could not be written after training."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PoiseError(f"{out} exists and is not an empty folder: choose another --out")
    parent = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise PoiseError(f"{out} cannot be written: {parent} is not a writable folder")


def check_target(config: RunConfig, prompts: Sequence[Prompt]) -> None:
    """Raise an error if `warmup.until` is set, but success would never be measured."""
    options = config.warmup
    if not options.until:
        return
    if not 0 < options.evaluate_every <= options.steps:
        raise PoiseError(
            f"warmup.until={options.until:g} needs warmup.evaluate_every between 1 and "
            f"warmup.steps={options.steps}"
        )
    if not prompts:
        raise PoiseError(
            f"warmup.until={options.until:g} needs held-out problems: raise task.heldout and "
            "evaluate.prompts"
        )


def load_start_policy(config: RunConfig) -> Policy:
    if config.model.name != "scratch":
        return load_policy(config.model)
    tokenizer = build_tokenizer()
    model = build_model(config.warmup, tokenizer, config.loop.seed)
    return wrap_model("scratch", model.to(choose_device(config.model.device)), tokenizer)
