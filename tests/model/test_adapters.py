"""LoRA: the adapter alone is trained, stored and resumed, and PEFT reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_run import checksum_reward

from counterpoise.config import ModelConfig, SampleConfig, UpdateConfig
from counterpoise.config.load import load_config
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import run_options as trl
from counterpoise.hosts.verl import run_options as verl
from counterpoise.lab.evaluate.models import load_model, resolve_models, tokenizer_and_context
from counterpoise.lab.speed.families import own_logprobs
from counterpoise.loop import train
from counterpoise.microscope.chosen_gradients import objective_gradient
from counterpoise.microscope.parameter_kernel import parameter_kernel_row, token_gradient
from counterpoise.model.decoder import Decoder
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.general import GeneralDecoder
from counterpoise.model.load import Policy, load_policy
from counterpoise.model.scoring import forward, score_logprobs
from counterpoise.sample.native import sample
from counterpoise.sample.vllm import VLLMSampler
from counterpoise.types import Rollout, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.reference import copy_weights, score_reference
from counterpoise.update.step import StepSettings, take_step

LORA = ModelConfig(name="embedded", device="cpu", lora_rank=4)
SETS = [
    "loop.checkpoint_every=1", "model.device='cpu'", "model.lora_rank=4", "update.lr=1e-3",
    "task.levels=[1]", "task.size=20", "task.heldout=2", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=16", "balance.tau=0", "batch.steps=1", "evaluate.prompts=0",
    "store.report=false",
]  # fmt: skip


def run(out: Path, iterations: int, *, resume: bool = False) -> Path:
    # Rewards by a checksum: sixteen tokens of every response have a signal.
    options = [f"loop.iterations={iterations}", *SETS, *checksum_reward(out.parent)]
    train(load_config("demo", options), out, resume=resume)
    return out / "model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("lora") / "whole", 2)


def sampled_rows(policy: Policy) -> list[Row]:
    prompt = policy.encode("Ann has 3 apples and buys 4 more. How many has she?")
    (responses,) = sample(policy, [prompt], [[1, 2]], SampleConfig(max_new_tokens=24))
    return [
        Row("p", 2.0 * index - 1, len(response.tokens), index=index, rollout=Rollout(
            "p", "p", "", "", float(index), prompt, response.tokens, response.logprobs
        ))
        for index, response in enumerate(responses)
    ]  # fmt: skip


def enlarge_adapter(policy: Policy) -> None:
    """Make every layer's adapter matter: two iterations move it too little to be missed."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(0.03 * torch.randn(weight.shape, generator=generator))


def test_a_step_moves_the_adapter_alone() -> None:
    policy = load_policy(LORA)
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    config = UpdateConfig(lr=1e-2)
    rows = sampled_rows(policy)
    take_step(
        policy, Optimizer(policy.model, config), rows,
        StepSettings(config, temperature=1.0, max_new_tokens=24),
    )  # fmt: skip
    moved = {
        name for name, weight in policy.model.named_parameters()
        if not torch.equal(weight, before[name])
    }  # fmt: skip
    assert moved
    assert all(".lora_" in name for name in moved)


def test_gradients_and_kernels_are_those_of_the_adapter() -> None:
    policy = load_policy(LORA)
    enlarge_adapter(policy)
    rows = sampled_rows(policy)
    position = int(rows[0].content.sampled_logprobs.argmin())  # far from certain
    gradient = token_gradient(policy, rows, (0, position))
    assert all(".lora_" in name for name in gradient)
    squared_norm = sum(float(tensor.square().sum()) for tensor in gradient.values())
    kernel_row = parameter_kernel_row(policy, rows, (0, position))
    assert float(kernel_row[position]) == pytest.approx(squared_norm, rel=1e-4)
    objective = objective_gradient(policy, rows, torch.tensor([position]))
    num_tokens = sum(row.num_tokens for row in rows)
    assert objective.keys() == gradient.keys()
    for name, tensor in objective.items():  # the advantage of row 0 is -1
        scaled = -num_tokens * tensor
        torch.testing.assert_close(scaled, gradient[name], rtol=1e-3, atol=1e-4 * squared_norm**0.5)


@pytest.mark.parametrize("path", ["fast", "general"])
def test_the_sampler_applies_the_adapter_as_the_trainer_does(trained: Path, path: str) -> None:
    policy = load_policy(ModelConfig(name=str(trained), device="cpu", path=path))
    assert isinstance(policy.decoder, Decoder if path == "fast" else GeneralDecoder)
    assert [notice[:5] for notice in policy.notices][-1] == "LoRA:"
    enlarge_adapter(policy)
    rows = sampled_rows(policy)
    scored = score_logprobs(policy, rows, 1.0, 4096)
    own = torch.cat([own_logprobs(policy.model, row) for row in rows])
    torch.testing.assert_close(
        torch.from_numpy(np.concatenate(scored)), own.detach(), rtol=1e-5, atol=1e-5
    )
    gaps = [
        np.abs(row.content.sampled_logprobs - logprobs).max()
        for row, logprobs in zip(rows, scored, strict=True)
    ]
    assert max(gaps) < 1e-5
    with policy.model.disable_adapter():
        without = forward(policy, rows, 1.0).logprobs_M
    base = load_policy(ModelConfig(name="embedded", device="cpu"))
    torch.testing.assert_close(without, forward(base, rows, 1.0).logprobs_M, rtol=1e-5, atol=1e-5)
    assert float((without - torch.from_numpy(np.concatenate(scored))).abs().max()) > 0.01


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_an_adapter_is_trained_in_half_precision() -> None:
    gradients = []
    for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
        policy = load_policy(ModelConfig(name="embedded", device=device, dtype=dtype, lora_rank=4))
        enlarge_adapter(policy)
        if device == "cpu":
            rows = sampled_rows(policy)
        outputs = forward(policy, rows, 1.0)
        weight_M = torch.cat(
            [torch.full((row.num_tokens,), row.advantage, device=device) for row in rows]
        )
        (outputs.logprobs_M * weight_M).mean().backward()
        gradients.append(torch.cat([
            weight.grad.flatten().cpu() for _, weight in policy.model.named_parameters()
            if weight.grad is not None
        ]))  # fmt: skip
        # The ratio of unchanged weights is exactly 1: both passes round in the same places.
        scored = torch.from_numpy(np.concatenate(score_logprobs(policy, rows, 1.0, 4096)))
        assert torch.equal(scored, outputs.logprobs_M.detach().float().cpu())
    exact, half = gradients
    assert float((half - exact).norm() / exact.norm()) < 0.1
    gaps = [
        np.abs(row.content.sampled_logprobs - logprobs).mean()
        for row, logprobs in zip(
            sampled_rows(policy), score_logprobs(policy, sampled_rows(policy), 1.0, 4096),
            strict=True,
        )
    ]  # fmt: skip
    assert max(gaps) < 0.02


def test_a_run_resumes_bit_for_bit_and_stores_the_adapter_alone(
    trained: Path, tmp_path: Path
) -> None:
    run(tmp_path / "part", 1)
    resumed = run(tmp_path / "part", 2, resume=True)
    whole, continued = (
        load_file(path / "adapter_model.safetensors") for path in (trained, resumed)
    )
    assert any(weight.any() for name, weight in whole.items() if "lora_B" in name)
    assert whole.keys() == continued.keys()
    assert all(torch.equal(whole[name], continued[name]) for name in whole)
    checkpoint = next((tmp_path / "part" / "checkpoints").glob("*/model.safetensors"))
    assert all(".lora_" in name for name in load_file(checkpoint))
    assert not (resumed / "model.safetensors").exists()


def test_peft_loads_what_was_trained(trained: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    theirs = AutoPeftModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    ours = load_policy(ModelConfig(name=str(trained), device="cpu"))
    tokens = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, ours.model(tokens).logits)


def test_the_reference_is_the_model_without_its_adapter(trained: Path) -> None:
    policy = load_policy(LORA)
    reference = copy_weights(policy)
    assert all(".lora_" in name for name in reference)
    enlarge_adapter(policy)
    rows = sampled_rows(policy)
    reader = PolicyReader(policy, 1.0, FittedSize(4096), iteration=1, seed=0)
    by_reference = np.concatenate(score_reference(reader, reference, rows))
    with policy.model.disable_adapter():
        without = forward(policy, rows, 1.0).logprobs_M
    np.testing.assert_allclose(by_reference, without.detach().numpy(), atol=1e-6)
    with_adapter = forward(policy, rows, 1.0).logprobs_M.detach().numpy()
    assert np.abs(by_reference - with_adapter).max() > 0.01


def test_a_run_and_its_checkpoints_are_evaluated_with_their_adapter(trained: Path) -> None:
    checkpoint = sorted((trained.parent / "checkpoints").iterdir())[-1]
    whole_run, newest = resolve_models([str(trained.parent), str(checkpoint)])
    assert tokenizer_and_context(whole_run)[1] == 1024
    tokens = torch.arange(3, 20)[None]
    by_run, by_checkpoint = (
        load_model(source, "cpu", "float32").model(tokens).logits for source in (whole_run, newest)
    )
    assert torch.equal(by_run, by_checkpoint)
    assert not torch.equal(by_run, load_policy(LORA).model(tokens).logits)


def test_bad_adapters_are_refused_in_one_line(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match=r"is an adapter already: set model.lora_rank to 0"):
        load_policy(ModelConfig(name=str(trained), lora_rank=4))
    with pytest.raises(PoiseError, match=r"model.lora_targets=\['nothing'\]: "):
        load_policy(ModelConfig(name="embedded", lora_rank=4, lora_targets=["nothing"]))
    with pytest.raises(PoiseError, match="adapter on the output layer or the embedding"):
        load_policy(ModelConfig(name="embedded", lora_rank=4, lora_targets=["lm_head"]))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4}))
    with pytest.raises(PoiseError, match=r"adapter_config.json cannot be read"):
        load_policy(ModelConfig(name=str(tmp_path)))


def test_what_does_not_take_an_adapter_says_so(trained: Path) -> None:
    config = load_config("demo", ["sample.engine=vllm"])
    with pytest.raises(PoiseError, match=r"an adapter is trained: set sample\.engine=native"):
        VLLMSampler(load_policy(LORA), config)
    adapter = load_config("demo", [f"model.name={trained}"])
    for engine in (trl, verl):
        with pytest.raises(PoiseError, match=r"\(an adapter trains with --engine native\)"):
            engine.check_options(adapter)
        with pytest.raises(PoiseError, match=r"model\.lora_rank=4 \(LoRA trains with --engine nat"):
            engine.check_options(load_config("demo", ["model.lora_rank=4"]))
