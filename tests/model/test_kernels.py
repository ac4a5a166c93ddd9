"""Every Triton kernel of the policy against its formula in torch, values and gradients."""

from __future__ import annotations

import copies_by_hand
import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from kernel_device import DEVICE


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize(("H", "K", "d"), [(9, 3, 64), (2, 1, 24), (16, 8, 128)])
@pytest.mark.parametrize("normed", [False, True])
def test_heads(H: int, K: int, d: int, normed: bool) -> None:
    from counterpoise.model.kernels import heads as kernel
    from counterpoise.model.layer_parts import split_heads, split_heads_backward

    N = 7
    qkv = random(N, H + 2 * K, d)
    angles = random(N, d // 2, seed=1).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    norms = (1 + random(d, seed=2), 1 + random(d, seed=3)) if normed else None
    expected = split_heads(qkv, norms, cos, sin, H, K, 1e-6)
    found = kernel.forward(qkv.clone(), norms, cos, sin, H, K, 1e-6)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)
    grads = random(N, H, d, seed=4), random(N, K, d, seed=5), random(N, K, d, seed=6)
    grad, of_norms = split_heads_backward(grads, qkv, norms, cos, sin, 1e-6)
    grad_kernel, of_norms_kernel = kernel.backward(*grads, qkv, norms, cos, sin, 1e-6)
    torch.testing.assert_close(grad_kernel, grad, atol=1e-5, rtol=1e-4)
    for left, right in zip(of_norms_kernel or (), of_norms or (), strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("N", "D"), [(5, 576), (1, 40), (700, 96)])
def test_norm(N: int, D: int) -> None:
    from counterpoise.model.kernels import norm as kernel
    from counterpoise.model.layer_parts import rms_norm, rms_norm_backward

    x, w = random(N, D), random(D, seed=1)
    grad, beside = random(N, D, seed=2), random(N, D, seed=3)
    torch.testing.assert_close(
        kernel.forward(x, w, 1e-5), rms_norm(x, w, 1e-5), atol=1e-5, rtol=1e-5
    )
    expected = rms_norm_backward(grad, x, w, 1e-5, beside)
    found = kernel.backward(grad, x, w, 1e-5, beside, weight_grads=True)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)
    alone, *others = kernel.backward(grad, x, w, 1e-5, beside, weight_grads=False)
    assert torch.equal(alone, found[0])
    assert others == [None, None]


@pytest.mark.parametrize(("N", "width"), [(5, 1536), (3, 40), (2, 2049)])
def test_gate(N: int, width: int) -> None:
    from counterpoise.model.kernels import gate as kernel
    from counterpoise.model.layer_parts import apply_gate, gate_backward

    joint, grad = 3 * random(N, 2 * width), random(N, width, seed=1)
    torch.testing.assert_close(kernel.forward(joint), apply_gate(joint), atol=1e-5, rtol=1e-5)
    found = kernel.backward(grad, joint, weight_grads=True)
    for left, right in zip(found, gate_backward(grad, joint), strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)
    alone, again = kernel.backward(grad, joint, weight_grads=False)
    assert torch.equal(alone, found[0])
    assert again is None


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("V", [97, 2048, 5000])
def test_head(V: int, temperature: float) -> None:
    from counterpoise.model.kernels.head import logit_gradient_, summarise

    n = 6
    logits = 4 * random(n, V)
    targets = torch.arange(n, device=DEVICE) * (V // n)
    out = tuple(torch.empty(n, device=DEVICE) for _ in range(3))
    summarise(logits, targets, temperature, out)
    z = logits / temperature
    logprobs = z.log_softmax(-1)
    torch.testing.assert_close(out[0], logprobs.gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(out[1], -(logprobs.exp() * logprobs).sum(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(out[2], z.logsumexp(-1))
    grad = random(n, seed=1)
    expected = (F.one_hot(targets, V) - logprobs.exp()) * grad[:, None] / temperature
    pushed = logit_gradient_(logits.clone(), targets, out[2], grad, temperature)
    torch.testing.assert_close(pushed, expected, atol=1e-6, rtol=1e-4)


def test_merge_of_two_attentions_is_the_attention_over_both() -> None:
    from counterpoise.model.kernels.merge import merge

    N, H, d, split = 4, 3, 16, 5
    q, k, v = random(N, H, d), random(9, H, d, seed=1), random(9, H, d, seed=2)

    def attend(keys: slice) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.einsum("nhd,mhd->hnm", q, k[keys])
        out = torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v[keys])
        return out.contiguous(), scores.logsumexp(-1)

    out, lse = attend(slice(None, split))
    beside, lse_beside = attend(slice(split, None))
    whole = torch.cat((torch.zeros(H, 2, device=DEVICE), lse), dim=1)  # a slice, as it is used
    joined = torch.empty_like(whole)
    merge(out, whole[:, 2:], beside, lse_beside, into=joined[:, 2:])
    expected, expected_lse = attend(slice(None))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(joined[:, 2:], expected_lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("H", "K", "d"), [(9, 3, 64), (2, 2, 24), (16, 8, 128)])
def test_copies(H: int, K: int, d: int) -> None:
    from counterpoise.model.kernels.copies import attend_copies, make_copy_blocks

    lengths, queries = np.array([1, 30, 70, 8]), np.array([1, 30, 70, 3])
    own = np.stack((np.cumsum(lengths) - lengths, lengths), axis=1)
    asked = np.stack((np.cumsum(queries) - queries, queries), axis=1)
    prompts, kept = [(0, 5), (0, 5), (5, 90), (5, 90)], [(95, 0), (95, 3), (100, 64), (100, 65)]
    spans = np.concatenate((asked, own, prompts, kept), axis=1)
    joint, q = random(lengths.sum(), 2 * K, d, seed=1), random(queries.sum(), H, d)
    originals = random(200, 2 * K, d, seed=2)
    given = q, joint[:, :K], joint[:, K:], originals[:, :K], originals[:, K:]
    half = [x.bfloat16() if DEVICE == "cuda" else x for x in given]
    found = attend_copies(*half, make_copy_blocks(spans, H // K, torch.device(DEVICE)))
    expected = copies_by_hand.attend(*(x.float().cpu() for x in half), spans)
    near = 2e-2 if DEVICE == "cuda" else 1e-5
    torch.testing.assert_close(found.float().cpu(), expected, atol=near, rtol=near)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_a_layer_of_kernels(
    architecture: str, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms, heads and gate in one layer that is written out, against autograd; in float32, with
    torch's attention: flash attention has none."""
    from counterpoise.model import layer, layer_parts
    from counterpoise.model.attention import PackedAttention, PaddedAttention
    from counterpoise.model.flash import find_segments
    from counterpoise.model.packing import pack

    policy = tiny.policy(architecture, **changes)
    with torch.no_grad():
        for i, weight in enumerate(policy.model.to(DEVICE).parameters()):
            weight += 0.1 * random(*weight.shape, seed=i)
    prompts = [np.arange(2, 2 + n, dtype=np.int32) for n in (4, 4, 7)]
    responses = [np.arange(3, 3 + n, dtype=np.int32) for n in (3, 1, 6)]
    packing = pack(prompts, responses, policy.device)
    attend = PaddedAttention(packing)

    def backward(grad, q, k, v, *_):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            out = attend(0, *leaves)
        return torch.autograd.grad(out, leaves, grad)

    nothing = torch.empty(0), (torch.empty(0), torch.empty(0))
    monkeypatch.setattr(layer, "flash_forward", lambda *x: (attend(0, *x[:3]), *nothing))
    monkeypatch.setattr(layer, "flash_backward", backward)
    monkeypatch.setattr(layer_parts, "uses_kernels", lambda x: not torch.is_grad_enabled())
    decoder = policy.decoder
    decoder.reserve(packing.longest)
    cos, sin = decoder._rotation(packing.positions_N)
    x = random(len(packing.tokens_N), 48).requires_grad_()
    given = layer.layer_parameters(decoder.layers[0])
    leaves = [x, *(weight for weight in given if weight is not None)]
    expected = decoder._layer(0, x, cos, sin, PackedAttention(packing))
    found = layer.FusedLayer.apply(x, cos, sin, find_segments(packing), decoder.shape, *given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    upstream = random(*x.shape, seed=1)
    by_hand, by_autograd = (torch.autograd.grad(z, leaves, upstream) for z in (found, expected))
    for left, right in zip(by_hand, by_autograd, strict=True):
        assert float((left - right).norm() / right.norm()) < 1e-5
