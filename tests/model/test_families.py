"""Every family of the fast path against transformers: forward, gradients, sampler, masked copies.

A new family is one line of `MODELS`. Every norm and bias is random, since fresh ones (ones and
zeros) would hide a norm that is left out. Windows are shorter than the sequences.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import SampleConfig
from counterpoise.credit.row_copies import OriginalRows, RowCopy
from counterpoise.errors import PoiseError
from counterpoise.model.attention import PackedAttention
from counterpoise.model.families import (
    FAMILIES,
    check_architecture,
    fast_path_refusal,
    read_facts,
)
from counterpoise.model.head import token_logprobs
from counterpoise.model.load import Policy, wrap_model
from counterpoise.model.packing import pack
from counterpoise.sample.native import sample
from counterpoise.types import Ints

WINDOW = 6
SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW}
LONG_ROPE = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", {}),
    "qwen2, window": ("qwen2", SLIDING | {"max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "gemma3_text": (
        "gemma3_text",
        {"head_dim": 16, "num_hidden_layers": 3, "query_pre_attn_scalar": 10,
         "sliding_window": WINDOW, "sliding_window_pattern": 2},
    ),
    "olmo2": ("olmo2", {}),
    "olmo2, biases": ("olmo2", {"attention_bias": True}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3, window": ("smollm3", SLIDING | {"no_rope_layer_interval": 2}),
    "phi3": ("phi3", {}),
    "phi3, window, partial": ("phi3", {"sliding_window": WINDOW, "rope_parameters": PARTIAL_ROPE}),
}  # fmt: skip
EVERY_MODEL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def random_policy(architecture: str, **changes: Any) -> Policy:
    policy = tiny.policy(architecture, **{"initializer_range": 0.15, **changes})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return policy


def draw_rows() -> tuple[list[Ints], list[Ints]]:
    """Two rows share a prompt longer than the window; the third is shorter than the window."""
    rng = np.random.default_rng(0)

    def tokens(size: int) -> Ints:
        return rng.integers(2, tiny.VOCABULARY, size).astype(np.int32)

    shared_prompt = tokens(9)
    return [shared_prompt, tokens(2), shared_prompt], [tokens(11), tokens(3), tokens(4)]


def logits_by_transformers(policy: Policy, prompt: Ints, response: Ints) -> torch.Tensor:
    ids = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64))[None]
    return policy.model(input_ids=ids.to(policy.device)).logits[0, len(prompt) - 1 : -1].float()


def logprobs_by_transformers(policy: Policy, prompt: Ints, response: Ints) -> torch.Tensor:
    logprobs = logits_by_transformers(policy, prompt, response).log_softmax(-1)
    chosen = torch.from_numpy(response.astype(np.int64))[:, None].to(policy.device)
    return logprobs.gather(1, chosen)[:, 0]


def logprobs_by_fast_path(policy: Policy) -> torch.Tensor:
    packing = pack(*draw_rows(), policy.device)
    policy.decoder.reserve(packing.longest)
    hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
    states = hidden[packing.predictors_M]
    return token_logprobs(states, policy.decoder.unembedding, packing.targets_M)[0]


def gradients(policy: Policy, logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    policy.model.zero_grad()
    (logprobs * torch.linspace(-1, 1, len(logprobs), device=logprobs.device)).sum().backward()
    return {name: weight.grad.clone() for name, weight in policy.model.named_parameters()}


@EVERY_MODEL
def test_logprobs_and_gradients(model: tuple[str, dict[str, Any]]) -> None:
    policy = random_policy(model[0], **model[1])
    rows = list(zip(*draw_rows(), strict=True))
    expected = torch.cat([logprobs_by_transformers(policy, *row) for row in rows])
    actual = logprobs_by_fast_path(policy)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(logprobs_by_fast_path(policy), actual, rtol=1e-5, atol=1e-5)
    expected_gradients = gradients(policy, expected)
    for name, gradient in gradients(policy, actual).items():
        error = (gradient - expected_gradients[name]).abs().max()
        assert error < 1e-5 * expected_gradients[name].abs().max(), name


@EVERY_MODEL
def test_sampler(model: tuple[str, dict[str, Any]]) -> None:
    """Prompts of unequal lengths: padding in the cache and windows meet."""
    policy = random_policy(model[0], **model[1])
    prompts = draw_rows()[0][:2]
    sampled = sample(policy, prompts, [[1, 2, 3], [4, 5, 6]], SampleConfig(max_new_tokens=12))
    assert max(len(response.tokens) for group in sampled for response in group) > WINDOW
    with torch.no_grad():
        for prompt, responses in zip(prompts, sampled, strict=True):
            for response in responses:
                expected = logprobs_by_transformers(policy, prompt, response.tokens)
                np.testing.assert_allclose(response.logprobs, expected, atol=1e-4)


@EVERY_MODEL
@torch.no_grad()
def test_copies_of_rows_that_start_from_cached_keys(model: tuple[str, dict[str, Any]]) -> None:
    policy = random_policy(model[0], **model[1])
    prompts, responses = draw_rows()
    packing = pack(prompts, responses, policy.device)
    policy.decoder.reserve(packing.longest)
    changed = responses[0][3:-1].copy()
    changed[0] = 2
    copies = [RowCopy(0, 3, changed), RowCopy(2, 0, responses[2][:-1])]
    states = OriginalRows(policy, packing).run_copies(copies, [(2, len(changed)), (0, 3)])
    logits = states @ policy.decoder.unembedding.T
    row = np.concatenate((responses[0][:3], changed, responses[0][-1:]))
    expected = [
        logits_by_transformers(policy, prompts[0], row)[6:],
        logits_by_transformers(policy, prompts[2], responses[2])[1:],
    ]
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-4, atol=1e-4)


def test_half_precision_rounds_about_where_transformers_does() -> None:
    """Gemma: the scale of embeddings rounded to bfloat16, norms in float32."""
    policy = random_policy("gemma3_text", head_dim=16, hidden_size=60, tie_word_embeddings=False)
    policy.model.to(torch.bfloat16)
    tokens = torch.arange(2, 12)
    assert torch.equal(policy.decoder.embed(tokens), policy.model.model.embed_tokens(tokens))
    norm = policy.model.model.norm
    x = torch.randn(7, 60).to(torch.bfloat16)
    assert torch.equal(policy.decoder._normalise(x, norm), norm(x))


# -- on a GPU in half precision, where windows are refused -----------------------------------------


def gpu_gradients(policy: Policy, *, by_transformers: bool) -> dict[str, torch.Tensor]:
    logprobs = logprobs_by_fast_path(policy)
    if by_transformers:
        rows = list(zip(*draw_rows(), strict=True))
        logprobs = torch.cat([logprobs_by_transformers(policy, *row) for row in rows])
    return {name: grad.float().cpu() for name, grad in gradients(policy, logprobs).items()}


def compare_half_precision(model: tuple[str, dict[str, Any]], device: str) -> None:
    """Gradients are about as exact as transformers' own, and the sampler agrees with the pass."""
    exact = random_policy(model[0], **{"head_dim": 16, **model[1]})
    expected = gpu_gradients(exact, by_transformers=True)
    policy = wrap_model("half", exact.model.to(device, torch.bfloat16), exact.tokenizer)
    yardstick = gpu_gradients(policy, by_transformers=True)
    for name, gradient in gpu_gradients(policy, by_transformers=False).items():
        error, their_error = (
            float((other[name] - expected[name]).norm() / expected[name].norm())
            for other in ({name: gradient}, yardstick)
        )
        assert error < 2 * their_error + 0.02, f"{name}: {error:.3f}, theirs {their_error:.3f}"
    prompt = draw_rows()[0][0]
    ((response,),) = sample(policy, [prompt], [[1]], SampleConfig(max_new_tokens=12))
    with torch.no_grad():
        scored = logprobs_by_transformers(policy, prompt, response.tokens).float().cpu()
    np.testing.assert_allclose(response.logprobs, scored, atol=0.15)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["mistral", "olmo2", "smollm3", "phi3", "llama, gelu"])
def test_half_precision_on_a_gpu(name: str) -> None:
    compare_half_precision(MODELS[name], "cuda")


@pytest.mark.parametrize("name", ["olmo2", "phi3", "gemma3_text"])
def test_half_precision_on_a_cpu(name: str) -> None:
    compare_half_precision(MODELS[name], "cpu")


# -- what is refused -------------------------------------------------------------------------------


def config_of(architecture: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(architecture, **changes)


def test_every_family_is_tested() -> None:
    assert {architecture for architecture, _ in MODELS.values()} == set(FAMILIES)


def test_which_layers_are_fused_on_a_gpu() -> None:
    fused = {name for name in FAMILIES if read_facts(config_of(name)).has_llama_layer}
    assert fused == {"llama", "qwen2", "qwen3", "mistral", "smollm3"}
    assert not read_facts(config_of("llama", hidden_act="gelu_pytorch_tanh")).has_llama_layer


DYNAMIC_ROPE_MODELS = (
    "models with dynamic rotary embedding (its angles depend on the sequence length)"
)


@pytest.mark.parametrize(
    ("architecture", "changes", "device_type", "models"),
    [
        ("gpt2", {}, "cpu", "gpt2 models"),
        ("llama", {"rope_parameters": LONG_ROPE}, "cpu", DYNAMIC_ROPE_MODELS),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": LONG_ROPE, "sliding_attention": None}},
            "cpu",
            DYNAMIC_ROPE_MODELS,
        ),
        ("qwen3", {"hidden_act": "relu"}, "cpu", "models with relu activations"),
        (
            "gemma3_text",
            {"final_logit_softcapping": 30.0},
            "cpu",
            "models with final_logit_softcapping",
        ),
        ("mistral", {}, "cuda", "models with sliding-window attention on a GPU"),
    ],
)
def test_refusals(architecture: str, changes: dict, device_type: str, models: str) -> None:
    config = config_of(architecture, **changes)
    assert fast_path_refusal(config, device_type) == f"the fast path does not run {models}"
    line = (
        rf"^{re.escape(models)} are not on the fast path: choose [^\n]+, or set model\.path=auto$"
    )
    with pytest.raises(PoiseError, match=line):
        check_architecture(config, device_type)


def test_windows_run_on_a_cpu_and_full_attention_everywhere() -> None:
    assert fast_path_refusal(config_of("mistral")) is None
    assert fast_path_refusal(config_of("mistral", sliding_window=None), "cuda") is None
    assert fast_path_refusal(config_of("qwen3"), "cuda") is None
