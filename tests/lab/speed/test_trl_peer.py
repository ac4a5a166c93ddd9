"""TRL's step on our work is our step: same tokens drawn, same new weights. Needs TRL 1.16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.credit.assign import assign
from counterpoise.hosts.trl import vllm_engine
from counterpoise.lab.speed import clock, trl_peer, whole_iteration, workload
from counterpoise.lab.speed.clock import Deadline
from counterpoise.lab.speed.floors import DeviceRates
from counterpoise.lab.speed.machine_sizes import SpeedSetup, cpu_plan
from counterpoise.lab.speed.workload import Workload
from counterpoise.model.load import Policy
from counterpoise.types import Group, Rollout, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

pytest.importorskip("trl", reason="TRL is not installed: pip install trl==1.16.0")

JOB = Workload("embedded", 3, 4, 6)


def test_trls_step_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = _recorded(monkeypatch)
    theirs, ours = workload.load_endless_policy(JOB.model), workload.load_endless_policy(JOB.model)
    before = _weights(ours)
    found = trl_peer.train_with_trl(
        JOB, theirs, repeats=1, warm_up=0, optim="sgd", learning_rate=0.1, max_grad_norm=0.0
    )
    assert (found.tokens, found.steps) == (JOB.rollouts * JOB.length, 1)
    rows = _rows(*drawn[0])
    texts = workload.make_texts(ours.tokenizer, JOB.prompts)
    for p, tokens in enumerate(workload.encode_texts(ours.tokenizer, texts)):
        np.testing.assert_array_equal(rows[p * JOB.group_size].content.prompt_tokens, tokens)
    config = UpdateConfig(lr=0.1, optimizer="sgd", max_grad_norm=0.0)
    optimizer = Optimizer(ours.model, config)
    take_step(
        ours,
        optimizer,
        rows,
        StepSettings(config, temperature=1.0, max_new_tokens=JOB.length),
        on_policy=True,
    )
    moved, wanted = _weights(ours) - before, _weights(theirs) - before
    # TRL adds 1e-4 to the standard deviation of the rewards, we add 1e-6
    assert float((moved - wanted).norm() / wanted.norm()) < 1e-3


def test_ours_takes_its_turns_between_blocks() -> None:
    turns: list[int] = []
    found = trl_peer.train_with_trl(
        Workload("embedded", 2, 2, 2),
        workload.load_endless_policy("embedded"),
        repeats=4,
        warm_up=1,
        block=2,
        between=lambda: turns.append(1),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
    )
    assert (len(found.total.seconds), len(turns)) == (4, 1)
    assert (found.tokens, found.steps) == (8, 1)  # two micro-batches are one optimizer step


def test_both_sides_of_the_peer_part_do_the_same_work() -> None:
    plan = replace(
        cpu_plan("embedded"), iteration=Workload("embedded", 4, 2, 3), peer_repeats=2, warm_up=1
    )
    rates, device = DeviceRates(copy=1e10, matrix=1e11, dtype="float32"), torch.device("cpu")
    part = whole_iteration.measure(
        SpeedSetup(device, rates, plan, Deadline(None), {}, lambda text: None)
    )
    found = part.data["peer"]
    assert {len(row) for row in part.rows} == {len(part.columns)}
    for name in ("tokens", "optimizer_steps"):
        assert found["TRL"][name] == found["ours"][name]
    assert len(found["TRL"]["iteration"]["seconds"]) == 2
    assert len(found["ours"]["iteration"]["seconds"]) == 4  # two before TRL, two between its steps
    # Every variant took as many turns as ours did beside it.
    assert sorted(found["variant_ratios"]) == sorted(whole_iteration.VARIANTS)
    assert all(ratio > 0 for ratio in found["variant_ratios"].values())


def test_vllm_gets_the_same_work_and_a_folder_with_the_same_weights(tmp_path: Path) -> None:
    """What can be said without a GPU: TRL takes the settings, and its vLLM will find the model."""
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig

    policy = workload.load_endless_policy(JOB.model)
    settings = trl_peer._settings(JOB, policy, 1, 2) | whole_iteration._vllm_arguments(JOB)
    config = GRPOConfig(output_dir=str(tmp_path), **settings)
    assert (config.use_vllm, config.vllm_mode, config.vllm_max_model_length) == (
        True,
        "colocate",
        workload.MAX_PROMPT_TOKENS + JOB.length,
    )
    assert config.generation_kwargs == {"ignore_eos": True}
    name_before = policy.model.name_or_path
    with vllm_engine.saved_model(policy):
        folder = Path(policy.model.name_or_path)
        saved = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert not folder.exists()
    assert policy.model.name_or_path == name_before
    for name, weight in policy.model.named_parameters():
        torch.testing.assert_close(saved[name], weight.detach(), atol=0, rtol=0)


def test_weights_that_were_loaded_before_count_in_the_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10 GB are held, 3 of them the weights; the work then takes 5 more: its peak is 8."""
    monkeypatch.setattr(clock, "release", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    for kind in ("allocated", "reserved"):
        monkeypatch.setattr(torch.cuda, f"memory_{kind}", lambda: 10)
        monkeypatch.setattr(torch.cuda, f"max_memory_{kind}", lambda: 15)
    peak = clock.PeakMemory(torch.device("cuda"))
    peak.start(loaded_bytes=3)
    peak.read()
    assert (peak.allocated, peak.reserved) == (8, 8)


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Prompts and completions of every generation, as TRL makes them."""
    from trl import GRPOTrainer

    drawn: list[tuple[Any, Any]] = []
    generate = GRPOTrainer._generate_single_turn

    def recording(self: Any, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        made = generate(self, prompt_ids, *args, **kwargs)
        drawn.append((prompt_ids, made[0]))
        return made

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", recording)
    return drawn


def _rows(prompts: list[list[int]], completions: list[list[int]]) -> list[Row]:
    rewards = workload.alternating_rewards(len(prompts))
    made = [
        Rollout("", "", "", "", reward, *(np.array(x, dtype=np.int32) for x in pair),
                sampled_logprobs=np.zeros(len(pair[1]), dtype=np.float32))
        for *pair, reward in zip(prompts, completions, rewards, strict=True)
    ]  # fmt: skip
    G = JOB.group_size
    groups = [Group(f"g{i}", 1, tuple(made[i : i + G])) for i in range(0, len(made), G)]
    return [row for group in assign(groups, "grpo", "uniform") for row in group]


def _weights(policy: Policy) -> Tensor:
    return torch.cat([w.detach().flatten().clone() for w in policy.model.parameters()])
