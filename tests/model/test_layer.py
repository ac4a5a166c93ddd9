"""The backward pass that is written out, against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from counterpoise.model import decoder as decoding
from counterpoise.model import layer as written
from counterpoise.model.attention import PackedAttention, PaddedAttention
from counterpoise.model.flash import find_segments
from counterpoise.model.layer_parts import apply_gate, gate_backward, rms_norm, rms_norm_backward
from counterpoise.model.packing import Packing, pack


def packing() -> Packing:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, tiny.VOCABULARY, n).astype(np.int32) for n in (4, 4, 7, 7)]
    prompts[1], prompts[3] = prompts[0], prompts[2]
    responses = [rng.integers(2, tiny.VOCABULARY, n).astype(np.int32) for n in (3, 1, 6, 2)]
    return pack(prompts, responses, torch.device("cpu"))


def plain_attention(monkeypatch: pytest.MonkeyPatch, packed: Packing) -> None:
    """Flash attention runs on GPUs only: padded attention and autograd in its place."""

    def forward(q, k, v, segments):
        o = PaddedAttention(packed)(0, q, k, v)
        return o.contiguous(), torch.empty(0), (torch.empty(0), torch.empty(0))

    def backward(grad, q, k, v, outputs, segments):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            o = PaddedAttention(packed)(0, *leaves)
        return torch.autograd.grad(o, leaves, grad)

    monkeypatch.setattr(written, "flash_forward", forward)
    monkeypatch.setattr(written, "flash_backward", backward)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_gradients_of_every_parameter(
    architecture: str, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = packing()
    plain_attention(monkeypatch, packed)
    policy = tiny.policy(architecture, **changes)
    policy.model.double()
    decoder = policy.decoder
    torch.manual_seed(1)
    for p in policy.model.parameters():  # no norm weight of exactly 1, no bias of exactly 0
        p.data += 0.1 * torch.randn_like(p)
    decoder.reserve(packed.longest)
    cos, sin = decoder._rotation(packed.positions_N)
    x = torch.randn(len(packed.tokens_N), 48, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    layer = decoder.layers[0]
    given = written.layer_parameters(layer)
    leaves = [x, *(p for p in given if p is not None)]

    expected = decoder._layer(0, x, cos, sin, PackedAttention(packed))
    found = written.FusedLayer.apply(x, cos, sin, find_segments(packed), decoder.shape, *given)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    by_autograd = torch.autograd.grad(expected, leaves, upstream)
    by_hand = torch.autograd.grad(found, leaves, upstream)
    for left, right in zip(by_hand, by_autograd, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_the_forward_is_that_without_gradients_bit_for_bit(
    architecture: str, changes: dict, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old log-probabilities come from the one, new ones from the other."""
    packed = packing()
    plain_attention(monkeypatch, packed)
    policy = tiny.policy(architecture, **changes)
    torch.manual_seed(1)
    for p in policy.model.parameters():
        p.data = (p.data + 0.1 * torch.randn_like(p)).to(dtype)
    decoder = policy.decoder
    cos, sin = decoder._rotation(packed.positions_N)
    x = torch.randn(len(packed.tokens_N), 48, dtype=dtype)
    with torch.no_grad():
        expected = decoder._layer(0, x.clone(), cos, sin, PackedAttention(packed))
    given = written.layer_parameters(decoder.layers[0])
    found = written.FusedLayer.apply(x, cos, sin, find_segments(packed), decoder.shape, *given)
    assert torch.equal(found, expected)


def test_norm_backward() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    w = torch.randn(7, dtype=torch.float64, requires_grad=True)
    grad, beside = torch.randn(2, 5, 7, dtype=torch.float64)
    h = rms_norm(x, w, 1e-5)
    dx, dw = torch.autograd.grad(h, (x, w), grad)
    found = rms_norm_backward(grad, x.detach(), w.detach(), 1e-5, beside)
    for left, right in zip(found, (dx + beside, h, dw), strict=True):
        torch.testing.assert_close(left, right.detach())


def test_gate_backward() -> None:
    torch.manual_seed(0)
    joint = torch.randn(5, 14, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(5, 7, dtype=torch.float64)
    out = apply_gate(joint)
    (expected,) = torch.autograd.grad(out, joint, grad)
    found, again = gate_backward(grad, joint.detach())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, out.detach())


def test_without_trained_weights_the_input_alone_has_a_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = packing()
    plain_attention(monkeypatch, packed)
    policy = tiny.policy("qwen3")
    policy.model.double()
    decoder = policy.decoder
    decoder.reserve(packed.longest)
    cos, sin = decoder._rotation(packed.positions_N)
    x = torch.randn(len(packed.tokens_N), 48, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)

    def gradient() -> torch.Tensor:
        given = written.layer_parameters(decoder.layers[0])
        z = written.FusedLayer.apply(x, cos, sin, find_segments(packed), decoder.shape, *given)
        return torch.autograd.grad(z, x, upstream)[0]

    expected = gradient()
    policy.model.requires_grad_(False)
    torch.testing.assert_close(gradient(), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("architecture", "changes", "taken"),
    [
        ("qwen3", {}, True),
        ("llama", {}, False),  # heads of 12: flash attention has no kernel for them
        ("llama", {"head_dim": 24}, True),
        ("qwen3", {"head_dim": 264}, False),
    ],
)
def test_when_a_layer_that_is_written_out_takes_over(
    architecture: str, changes: dict, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = packing()
    plain_attention(monkeypatch, packed)
    policy = tiny.policy(architecture, **changes, num_hidden_layers=1)
    given = packed.tokens_N, packed.positions_N, PackedAttention(packed)
    expected = policy.decoder(*given)
    calls: list[int] = []
    apply = written.FusedLayer.apply

    def noted(*args):
        calls.append(1)
        return apply(*args)

    monkeypatch.setattr(decoding, "is_half_on_gpu", lambda x: True)
    monkeypatch.setattr(written.FusedLayer, "apply", noted)
    found = policy.decoder(*given)
    assert bool(calls) == taken
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
