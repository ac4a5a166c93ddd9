"""The real vLLM, an engine for each test: architectures, temperatures, whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from sample.vllm_draws import CONFIG, SEEDS, differences, real_vllm, rows, shaken, some_prompts

from counterpoise.config import ModelConfig, RunConfig, SampleConfig
from counterpoise.config.load import config_from_tables, load_config
from counterpoise.loop import train
from counterpoise.model.load import load_policy
from counterpoise.model.scoring import score_logprobs
from counterpoise.sample.vllm import VLLMSampler
from counterpoise.types import Response

pytestmark = real_vllm


def test_the_trainer_computes_as_before() -> None:
    policy = load_policy(ModelConfig(device="cpu"))
    prompts = some_prompts(policy)
    drawn = [[Response(p[::-1].copy(), np.zeros(len(p), np.float32), "", True)] for p in prompts]
    made, threads = rows(prompts, drawn), torch.get_num_threads()
    before = score_logprobs(policy, made, 1.0, 20_000)
    engine = VLLMSampler(policy, CONFIG)
    engine(policy, prompts, SEEDS, CONFIG.sample)
    after = score_logprobs(policy, made, 1.0, 20_000)
    engine.close()
    assert all(np.array_equal(x, y) for x, y in zip(before, after, strict=True))
    assert torch.get_num_threads() == threads
    torch.set_num_threads(threads)  # vLLM takes this away and we give it back
    assert torch.set_num_threads.__name__ == "set_num_threads"


def test_at_another_temperature() -> None:
    policy = load_policy(ModelConfig(device="cpu"))
    prompts = some_prompts(policy)
    config = config_from_tables({"sample": {"engine": "vllm", "temperature": 0.7}})
    engine = VLLMSampler(policy, config)
    drawn = engine(policy, prompts, SEEDS, config.sample)
    cut = engine(policy, prompts, SEEDS, replace(config.sample, temperature=0.6, top_p=0.95))
    engine.close()
    assert differences(policy, prompts, drawn, 0.7).max() < 1e-4
    assert all(np.isnan(r.logprobs).all() for group in cut for r in group)  # unknown, not wrong
    assert all(r.text for group in cut for r in group)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_architecture(architecture: str, tied: bool) -> None:
    changes: dict[str, object] = {"hidden_size": 128, "tie_word_embeddings": tied}
    policy = tiny.policy(architecture, **changes)
    prompts = [np.arange(2, 2 + n, dtype=np.int32) for n in (3, 40, 70)]
    config = RunConfig(sample=SampleConfig(engine="vllm", max_new_tokens=24, max_prompt_tokens=80))
    seeds = [[10 * p + g for g in range(3)] for p in range(3)]
    engine = VLLMSampler(policy, config)
    for seed in range(2):
        drawn = engine(policy, prompts, seeds, config.sample)
        assert differences(policy, prompts, drawn, 1.0).max() < 1e-4
        shaken(policy, seed)
    engine.close()


RUN = [
    "sample.engine=vllm", "loop.iterations=4", "sample.prompts=8", "sample.group_size=4",
    "batch.steps=2", "balance.tau=0", "task.size=64", "evaluate.prompts=16", "evaluate.samples=2",
    'evaluate.settings=["training", "0.6/0.95"]', "update.lr=1e-3", "update.importance=token",
    "loop.checkpoint_every=2",
]  # fmt: skip


def test_a_run_and_its_repetition(tmp_path: Path) -> None:
    """Iterations with weights that change: in step with the trainer, and repeatable."""
    config = load_config("demo", RUN)
    folder = train(config, tmp_path / "one")
    metrics = folder.read("metrics")
    assert [record["steps"] for record in metrics] == [2] * 4
    for record in metrics:
        assert 0 < record["sampler_mismatch"] < 1e-6
        assert record["sampler_mismatch_max"] < 1e-4
        assert record["sampler_ratio_std"] < 1e-5
        assert record["capped_share"] == 0
        assert record["mean_ratio"] != 1  # the second step's weights are others
    first, last = (folder.read("evaluations")[i]["mean"] for i in (0, -2))
    assert first != last
    assert len(folder.read("evaluations")) == 4
    again = train(config, tmp_path / "two").read("metrics")
    assert timeless(again) == timeless(metrics)


def timeless(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in r.items() if not k.endswith(("_seconds", "_per_second"))} for r in records
    ]
