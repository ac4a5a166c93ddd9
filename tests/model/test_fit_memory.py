"""Memory that runs out: a smaller pass, the same step; and one line where none is small enough."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from counterpoise import loop
from counterpoise.config import ModelConfig, UpdateConfig
from counterpoise.config.load import config_from_tables, load_config
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import run as trl_run
from counterpoise.microscope.monitor import Monitor
from counterpoise.model.decoder import Decoder
from counterpoise.model.fit_memory import (
    FittedSize,
    describe_prompts,
    explain_out_of_memory,
    is_out_of_memory,
)
from counterpoise.model.load import Policy, load_policy
from counterpoise.model.scoring import score_logprobs
from counterpoise.run import lifecycle
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import new_state, restore_state, save_state
from counterpoise.sample.collect import SamplerBinding, draw_responses
from counterpoise.store.checkpoint import load_newest
from counterpoise.store.folder import RunFolder
from counterpoise.types import Prompt, Rollout, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

CONFIG = UpdateConfig(lr=0.01, weight_decay=0.1)
KEYS: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 24}
WORK = {"smallest": 10, "total": 1_000_000}


class Tight(Decoder):
    """The real decoder on a device with room for `room` tokens in one pass."""

    room = 10_000
    passes = 0

    def __call__(self, tokens_N: Tensor, *rest: Any, **options: Any) -> Tensor:
        self.passes += 1
        if len(tokens_N) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().__call__(tokens_N, *rest, **options)


def tight(room: int) -> Policy:
    policy = tiny.policy()
    decoder = Tight(policy.model)
    decoder.room = room
    return replace(policy, decoder=decoder)


def weights(policy: Policy) -> Tensor:
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


# -- the size -----------------------------------------------------------------------------------


def test_the_size_is_halved_remembered_and_told() -> None:
    said: list[str] = []
    micro = FittedSize(16384, notify=said.append)

    def attempt(size: int) -> int:
        if size > 5000:
            raise torch.OutOfMemoryError
        return size

    assert micro.run_fitting(attempt, **WORK) == 4096
    assert said == [
        "micro-batches of 8,192 tokens from now on: out of memory at 16,384",
        "micro-batches of 4,096 tokens from now on: out of memory at 8,192",
    ]
    assert micro.run_fitting(attempt, **WORK) == micro.size == 4096
    assert len(said) == 2


def test_a_size_above_all_the_work_is_no_smaller_piece() -> None:
    said: list[str] = []
    micro = FittedSize(16384, notify=said.append, describe="{:,} rows at once".format)
    tried: list[int] = []

    def attempt(size: int) -> int:
        tried.append(size)
        if size >= 100:
            raise torch.OutOfMemoryError
        return size

    assert micro.run_fitting(attempt, smallest=1, total=100) == 50
    assert tried == [16384, 50]
    assert said == ["50 rows at once from now on: out of memory at 100"]


def test_the_smallest_piece_is_tried_before_giving_up() -> None:
    micro = FittedSize(64)
    tried: list[int] = []

    def attempt(size: int) -> None:
        tried.append(size)
        raise torch.OutOfMemoryError

    with pytest.raises(
        PoiseError, match=r"micro-batches of 25 tokens, the smallest possible: shorten"
    ):
        micro.run_fitting(attempt, smallest=25, total=1000, remedy="shorten")
    assert tried == [64, 32, 25]


def test_what_is_no_lack_of_memory_goes_through() -> None:
    def attempt(_: int) -> None:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        FittedSize(64).run_fitting(attempt, **WORK)
    with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory("buy more"):
        attempt(0)
    assert not is_out_of_memory(KeyError("x"))


@pytest.mark.parametrize("trainer", [loop, trl_run])
def test_a_model_that_does_not_fit_is_one_line(
    trainer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`poise experiment` tries runs again whose last line says so."""

    def load(_: object) -> Policy:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(lifecycle, "load_policy", load)
    monkeypatch.setattr(trl_run, "load_policy", load)
    monkeypatch.setattr(trl_run.host, "require_trl", lambda: None)
    config = load_config("demo", ["balance.tau=0", "verify.reward_timeout_seconds=0"])
    with pytest.raises(PoiseError, match=r"^out of memory: continue with --resume and"):
        trainer.train(config, tmp_path / "run")


def test_the_cpu_runs_out_of_memory_for_real() -> None:
    """More than any address space holds: torch's own allocator says so."""
    micro = FittedSize(1 << 48)
    found = micro.run_fitting(lambda size: torch.empty(16 * size), smallest=1, total=1 << 48)
    assert found.numel() == 16 * micro.size < 16 << 48
    with (
        pytest.raises(PoiseError, match="out of memory: buy more"),
        explain_out_of_memory("buy more"),
    ):
        torch.empty(1 << 52)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_runs_out_of_memory_for_real() -> None:
    free, _ = torch.cuda.mem_get_info()
    micro = FittedSize(4 * free)
    found = micro.run_fitting(
        lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"), smallest=1, total=4 * free
    )
    assert found.numel() == micro.size <= free


# -- the update ---------------------------------------------------------------------------------


def test_a_long_row_without_signal_does_not_stand_in_the_way() -> None:
    """No pass reads it, so passes may be shorter than it is."""
    rows = tiny.rows(groups=3)
    tokens = np.full(200, 5, dtype=np.int32)
    aside = Rollout("z", "z", "", "", 0.0, tokens[:7], tokens, np.zeros(200, dtype=np.float32))
    policy, micro = tight(60), FittedSize(1000)
    steps = [*rows, Row("z", 0.0, 200, rollout=aside)]
    result = take_step(
        policy,
        Optimizer(policy.model, CONFIG),
        steps,
        StepSettings(CONFIG, micro_batch=micro, **KEYS),
    )
    assert result.skipped == ""
    assert micro.size < 200


def test_a_step_that_did_not_fit_is_the_step_of_smaller_passes() -> None:
    rows, said = tiny.rows(groups=5), []
    first = tiny.rows(seed=9)
    ends, found = [], 10_000
    for room in (45, 10_000):
        policy = tight(room)
        optimizer = Optimizer(policy.model, CONFIG)
        take_step(
            policy, optimizer, first, StepSettings(CONFIG, micro_batch=FittedSize(30), **KEYS)
        )  # moments exist
        micro = FittedSize(found, notify=said.append)
        result = take_step(policy, optimizer, rows, StepSettings(CONFIG, micro_batch=micro, **KEYS))
        found = micro.size
        ends.append((weights(policy), optimizer.state(), result))
        assert all(p.grad is None for p in policy.model.parameters())
    assert 20 < found <= 45
    assert said[-1].startswith(f"micro-batches of {found} tokens from now on")
    (ours, state, result), (theirs, reference, whole) = ends
    assert torch.equal(ours, theirs)
    assert all(torch.equal(state[name], reference[name]) for name in reference)
    assert (result.loss, result.grad_norm) == (whole.loss, whole.grad_norm)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_half_a_gradient_is_thrown_away(failing: int) -> None:
    """The pass that fails comes after others whose gradients were added already."""

    class Once(Tight):
        def __call__(self, *args: Any, **options: Any) -> Tensor:
            self.passes += 1
            if self.passes == failing:
                raise torch.OutOfMemoryError
            return Decoder.__call__(self, *args, **options)

    rows, ends = tiny.rows(groups=4, seed=2), []
    for again in (True, False):
        policy = tiny.policy()
        if again:
            policy = replace(policy, decoder=Once(policy.model))
        optimizer = Optimizer(policy.model, CONFIG)
        micro = FittedSize(60 if again else 30)
        take_step(policy, optimizer, rows, StepSettings(CONFIG, micro_batch=micro, **KEYS))
        assert micro.size == 30
        ends.append(weights(policy))
    assert torch.equal(*ends)


def test_a_rollout_too_long_for_memory_is_one_line_and_harms_nothing() -> None:
    policy = tight(12)
    optimizer = Optimizer(policy.model, CONFIG)
    take_step(policy, optimizer, tiny.rows(longest=3, groups=1), StepSettings(CONFIG, **KEYS))
    before, state = weights(policy), {k: v.clone() for k, v in optimizer.state().items()}
    with pytest.raises(
        PoiseError, match=r"smallest possible: .* update\.checkpointing=true.*smaller model"
    ):
        take_step(policy, optimizer, tiny.rows(longest=17), StepSettings(CONFIG, **KEYS))
    assert torch.equal(weights(policy), before)
    after = optimizer.state()
    assert all(torch.equal(after[name], state[name]) for name in state)
    assert all(p.grad is None for p in policy.model.parameters())


def test_scores_fit_too_and_the_monitor_with_them() -> None:
    rows = tiny.rows(groups=5)
    micro = FittedSize(10_000)
    found = score_logprobs(tight(45), rows, 1.0, micro)
    assert micro.size <= 45
    for ours, theirs in zip(
        found, score_logprobs(tiny.policy(), rows, 1.0, micro.size), strict=True
    ):
        assert ours.tobytes() == theirs.tobytes()
    policy, micro = tight(45), FittedSize(10_000)
    monitor = Monitor(1.0, micro, set())
    take_step(
        policy,
        Optimizer(policy.model, CONFIG),
        rows,
        StepSettings(CONFIG, micro_batch=micro, **KEYS),
        observer=monitor,
    )
    (view,) = monitor.measurements
    assert math.isfinite(float(view.displacement.sum()))
    assert len(view.displacement) == sum(row.num_tokens for row in rows)


def test_no_rows_take_no_pass() -> None:
    assert (
        score_logprobs(tiny.policy(), [], 1.0, FittedSize(10))
        == score_logprobs(tiny.policy(), [], 1.0, 10)
        == []
    )


# -- sampling -----------------------------------------------------------------------------------


def test_sampling_that_did_not_fit_draws_the_same_responses_in_parts() -> None:
    config = config_from_tables(
        {"sample": {"prompts": 4, "group_size": 4, "max_new_tokens": 6}, "loop": {"seed": 3}}
    )
    prompts = [
        (Prompt(f"p{i}", "", ""), row.content.prompt_tokens[:3])
        for i, row in enumerate(tiny.rows(groups=4, size=1))
    ]
    said: list[str] = []
    at_once = FittedSize(4, describe=describe_prompts, notify=said.append)
    found = draw_responses(
        SamplerBinding(tight(9), at_once), prompts, config, 1
    )  # room for 8 rows, not for 16
    assert said == ["2 prompts sampled at once from now on: out of memory at 4"]
    expected = draw_responses(SamplerBinding(tiny.policy()), prompts, config, 1)
    for ours, theirs in zip(found, expected, strict=True):
        assert [r.tokens.tolist() for r in ours] == [r.tokens.tolist() for r in theirs]
    with pytest.raises(PoiseError, match=r"at 1 prompt sampled at once, .* sample\.group_size"):
        draw_responses(SamplerBinding(tight(3), at_once), prompts, config, 1)


# -- the run ------------------------------------------------------------------------------------


def test_a_resumed_run_remembers_the_size(tmp_path: Path) -> None:
    config = config_from_tables({"update": {"micro_tokens": 4096}})
    folder = RunFolder.create(tmp_path / "run", config)
    state = new_state(tiny.policy(), config)
    state.micro_batch.size, state.prompts_per_draw.size = 1024, 4
    save_state(folder, state, config)
    again = restore_state(folder, tiny.policy(), config, print, heldout=[])
    assert (again.micro_batch.size, again.prompts_per_draw.size) == (1024, 4)
    smaller = dataclasses.replace(config, update=replace(config.update, micro_tokens=512))
    shrunk = restore_state(folder, tiny.policy(), smaller, print, heldout=[])
    assert shrunk.micro_batch.size == 512


def test_a_size_that_was_never_lowered_can_be_raised_on_resume(tmp_path: Path) -> None:
    config = config_from_tables({"update": {"micro_tokens": 4096}})
    folder = RunFolder.create(tmp_path / "run", config)
    save_state(folder, new_state(tiny.policy(), config), config)
    larger = dataclasses.replace(config, update=replace(config.update, micro_tokens=20_000))
    again = restore_state(folder, tiny.policy(), larger, print, heldout=[])
    assert again.micro_batch.size == 20_000
    # Once lowered, it stays lowered, whatever the option says.
    again.micro_batch.size = 8192
    save_state(folder, again, larger)
    for option in (20_000, 40_000):
        options = dataclasses.replace(config, update=replace(config.update, micro_tokens=option))
        lowered = restore_state(folder, tiny.policy(), options, print, heldout=[])
        assert lowered.micro_batch.size == 8192


SETS = [
    "loop.iterations=2", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[1]",
    "task.size=16", "task.heldout=0", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=40", "balance.tau=0", "batch.steps=2", "evaluate.prompts=0",
    "verify.name='exact'",
]  # fmt: skip


class Listen(RunObserver):
    def __init__(self) -> None:
        self.said: list[str] = []

    def notify(self, message: str) -> None:
        self.said.append(message)


def test_a_run_goes_on_with_less_and_ends_with_a_line_when_nothing_is_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 250

    def on_a_small_device(config: ModelConfig) -> Policy:
        policy = load_policy(config)
        decoder = Tight(policy.model)
        decoder.room = room
        return replace(policy, decoder=decoder)

    monkeypatch.setattr(lifecycle, "load_policy", on_a_small_device)
    watch = Listen()
    folder = loop.train(load_config("demo", SETS), tmp_path / "run", observer=watch)
    assert len(folder.read("metrics")) == 2
    passes = [message for message in watch.said if message.startswith("micro-batches of")]
    assert passes
    assert len(passes) == len(set(passes))
    newest = load_newest(folder.checkpoints, print)
    assert newest is not None
    assert newest.state["micro_tokens"] <= 2 * room  # passes are evened out below their size

    room = 30  # less than one rollout
    longer = load_config("demo", [*SETS, "loop.iterations=3"])
    with pytest.raises(PoiseError, match="the smallest possible: "):
        loop.train(longer, tmp_path / "run", resume=True, observer=watch)
    newest = load_newest(folder.checkpoints, print)
    assert newest is not None
    assert newest.iteration == 2
    room = 10_000
    assert len(loop.train(longer, tmp_path / "run", resume=True).read("metrics")) == 3
