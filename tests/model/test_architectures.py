"""Every shape the three architectures come in: our forward and gradient are transformers' own.

Fresh models have biases of zero and norms of one, which would hide a part that is left out; here
every parameter is random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import ModelConfig
from counterpoise.model.attention import PackedAttention
from counterpoise.model.head import token_logprobs
from counterpoise.model.load import Policy, load_policy, save_policy, wrap_model
from counterpoise.model.packing import pack
from counterpoise.types import Ints

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, wide heads": ("llama", {"head_dim": 20}),
    "llama, all biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one key/value head": ("llama", {"num_key_value_heads": 1}),
    "llama, a key/value head each": ("llama", {"num_key_value_heads": 4}),
    "llama, all biases, heads of 16": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
    ),
    "llama, three to one": (
        "llama",
        {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2, heads of 16": ("qwen2", {"hidden_size": 64}),
    "qwen3": ("qwen3", {}),
    "qwen3, narrow heads": ("qwen3", {"head_dim": 8}),
    "qwen3, biases": ("qwen3", {"attention_bias": True}),
}
KINDS = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def random_policy(architecture: str, **changes: Any) -> Policy:
    policy = tiny.policy(architecture, **changes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return policy


def rows() -> tuple[list[Ints], list[Ints]]:
    rng = np.random.default_rng(0)

    def tokens(size: int) -> Ints:
        return rng.integers(2, tiny.VOCABULARY, size).astype(np.int32)

    prompts = [tokens(5), tokens(9)]
    return [prompts[0], prompts[1], prompts[0]], [tokens(7), tokens(1), tokens(3)]


def ours(policy: Policy) -> torch.Tensor:
    packing = pack(*rows(), policy.device)
    hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
    return token_logprobs(
        hidden[packing.predictors_M], policy.decoder.unembedding, packing.targets_M
    )[0]


def theirs(policy: Policy) -> torch.Tensor:
    parts = []
    for prompt, response in zip(*rows(), strict=True):
        ids = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64))[None]
        logprobs = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        parts.append(logprobs.gather(1, ids[0, len(prompt) :, None]).squeeze(1))
    return torch.cat(parts)


@KINDS
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_forward_and_gradient(shape: tuple[str, dict[str, Any]], tied: bool) -> None:
    policy = random_policy(shape[0], tie_word_embeddings=tied, **shape[1])
    weights_N = torch.linspace(-1, 1, 11)
    gradients = []
    for found in (ours(policy), theirs(policy)):
        policy.model.zero_grad()
        (found * weights_N).sum().backward()
        gradients.append({n: p.grad.clone() for n, p in policy.model.named_parameters()})
    torch.testing.assert_close(ours(policy), theirs(policy), rtol=2e-5, atol=2e-5)
    for name, wanted in gradients[1].items():
        error = (gradients[0][name] - wanted).norm() / wanted.norm().clamp(min=1e-3)
        assert error < 2e-4, name


@KINDS
@torch.no_grad()
def test_a_folder_gives_back_what_was_saved(
    shape: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Weights lie side by side in memory; on disk each is its own, and a tie is one tensor."""
    embedded = load_policy(ModelConfig(device="cpu"))
    made = random_policy(shape[0], vocab_size=len(embedded.tokenizer), **shape[1])
    policy = wrap_model("made", made.model, embedded.tokenizer)
    save_policy(policy, tmp_path / "model")
    loaded = load_policy(ModelConfig(name=str(tmp_path / "model"), device="cpu"))
    for name, weight in policy.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight), name
    assert torch.equal(ours(loaded), ours(policy))


def test_a_folder_of_another_type_leaves_the_policy_alone(tmp_path: Path) -> None:
    embedded = load_policy(ModelConfig(device="cpu"))
    made = random_policy("qwen3", vocab_size=len(embedded.tokenizer))
    policy = wrap_model("made", made.model, embedded.tokenizer)
    before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    save_policy(policy, tmp_path / "model", torch.bfloat16)
    loaded = load_policy(ModelConfig(name=str(tmp_path / "model"), device="cpu"))
    for name, weight in policy.model.state_dict().items():
        assert torch.equal(weight, before[name])
        assert torch.equal(loaded.model.state_dict()[name], weight.to(torch.bfloat16).float())


# -- on a GPU in half precision: layers written out, flash attention, kernels ---------------------


def grouped_rows() -> tuple[list[Ints], list[Ints]]:
    """Responses of a prompt side by side, as steps have them; no length is a block's."""
    rng = np.random.default_rng(3)

    def tokens(size: int) -> Ints:
        return rng.integers(2, tiny.VOCABULARY, size).astype(np.int32)

    prompts = [tokens(n) for n in (1, 37, 66)]
    sizes = ((5, 1, 90), (64, 65), (7,))
    return (
        [prompt for prompt, group in zip(prompts, sizes, strict=True) for _ in group],
        [tokens(n) for group in sizes for n in group],
    )


def gradients_of(policy: Policy, *, by_transformers: bool) -> dict[str, torch.Tensor]:
    prompts, responses = grouped_rows()
    policy.model.zero_grad()
    if by_transformers:
        parts = []
        for prompt, response in zip(prompts, responses, strict=True):
            ids = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64))[None]
            logits = policy.model(input_ids=ids.to(policy.device)).logits[0, len(prompt) - 1 : -1]
            chosen = ids[0, len(prompt) :, None].to(policy.device)
            parts.append(logits.float().log_softmax(-1).gather(1, chosen).squeeze(1))
        found = torch.cat(parts)
    else:
        packing = pack(prompts, responses, policy.device)
        hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
        found = token_logprobs(
            hidden[packing.predictors_M], policy.decoder.unembedding, packing.targets_M
        )[0]
    (found * torch.linspace(-1, 1, len(found), device=found.device)).sum().backward()
    return {name: p.grad.float().cpu().clone() for name, p in policy.model.named_parameters()}


def compare(shape: tuple[str, dict[str, Any]], tied: bool, device: str, dtype: torch.dtype) -> None:
    """Every parameter's gradient, each bias among them, is about as exact as transformers' own."""
    changes = {"initializer_range": 0.1, "tie_word_embeddings": tied, **shape[1]}
    exact = random_policy(shape[0], **changes)
    wanted = gradients_of(exact, by_transformers=True)
    policy = wrap_model("other", exact.model.to(device, dtype), exact.tokenizer)
    yardstick = gradients_of(policy, by_transformers=True)
    ours = gradients_of(policy, by_transformers=False)
    assert wanted.keys() == ours.keys()
    for name, right in wanted.items():
        error, theirs = (float((g[name] - right).norm() / right.norm()) for g in (ours, yardstick))
        assert error < 2 * theirs + 0.02, f"{name}: {error:.3f}, transformers {theirs:.3f}"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@KINDS
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_gradient_of_every_parameter_on_a_gpu(
    shape: tuple[str, dict[str, Any]], tied: bool
) -> None:
    """Heads of 12 and 20 take torch's own attention, those of 8 and 16 layers written out."""
    compare(shape, tied, "cuda", torch.bfloat16)


def test_the_comparison_notices_a_bias_without_its_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    biases = SHAPES["llama, all biases"]
    compare(biases, True, "cpu", torch.float32)
    real = gradients_of

    def without(policy: Policy, *, by_transformers: bool) -> dict[str, torch.Tensor]:
        found = real(policy, by_transformers=by_transformers)
        if not by_transformers:
            found["model.layers.0.mlp.down_proj.bias"].zero_()
        return found

    monkeypatch.setitem(globals(), "gradients_of", without)
    with pytest.raises(AssertionError, match=r"mlp\.down_proj\.bias: 1\.000"):
        compare(biases, True, "cpu", torch.float32)
