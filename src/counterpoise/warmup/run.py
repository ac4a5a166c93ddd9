"""`poise warmup`: load or build a model, train it on worked solutions, save it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.evaluate.heldout import judge
from counterpoise.policy.load import (
    Policy,
    as_policy,
    choose_device,
    load_policy,
    save_policy,
)
from counterpoise.task.load import load_task
from counterpoise.verify import VERIFIERS
from counterpoise.warmup.scratch import build_model, build_tokenizer
from counterpoise.warmup.supervise import check_solutions, supervise


def run_warmup(config: RunConfig, out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PoiseError(f"{out} exists and is not an empty folder: choose another --out")
    check_writable(out)
    console = Console()
    task = load_task(config.task)
    check_solutions(task.train)
    policy = start(config)
    console.print(
        f"{policy.name}: {policy.num_parameters / 1e6:.2f} M parameters on {policy.device}",
        markup=False,
    )
    with Progress(
        TextColumn("warm-up"),
        MofNCompleteColumn(),
        BarColumn(24),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        bar = progress.add_task("", total=config.warmup.steps, loss=float("nan"))
        supervise(
            policy, task.train, config.warmup, config.loop.seed, config.update.micro_tokens,
            lambda step, loss: progress.update(bar, advance=1, loss=loss),
        )  # fmt: skip
    policy.model.to(torch.bfloat16)
    save_policy(policy, out)
    policy.model.float()  # as saved, so that what is judged next is what is there
    console.print(f"saved  {out}", markup=False)
    if prompts := task.heldout[: config.evaluate.prompts]:
        verifier = VERIFIERS.load(config.verify.name)(
            config.verify.timeout_seconds, config.verify.workers
        )
        try:
            success = judge(
                policy, prompts, config.evaluate.samples, config.sample, verifier, config.loop.seed
            )
        finally:
            verifier.close()
        console.print(
            f"held-out success at temperature {config.sample.temperature:g}: {success}, "
            f"pass@{success.samples} {100 * success.pass_any:.1f} %, "
            f"mixed groups {100 * success.mixed:.1f} %"
        )


def check_writable(out: Path) -> None:
    """Refuse before the work what would fail after it; leaves nothing behind."""
    parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise PoiseError(f"{out} cannot be written: {parent} is not a folder one can write to")


def start(config: RunConfig) -> Policy:
    if config.model.name != "scratch":
        return load_policy(config.model)
    tokenizer = build_tokenizer()
    model = build_model(config.warmup, tokenizer, config.loop.seed)
    return as_policy("scratch", model.to(choose_device(config.model.device)), tokenizer)
