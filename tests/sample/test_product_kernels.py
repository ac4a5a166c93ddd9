"""The fused products of a decoding step against the separate operations in torch."""

from __future__ import annotations

import pytest
import tiny
import torch
import torch.nn.functional as F
from kernel_device import DEVICE

from counterpoise.model.decoder import Decoder
from counterpoise.model.layer_parts import split_heads
from counterpoise.sample.decode_layers import decode_layers, supports_fused_products

EPSILON = 1e-5


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("R", "D", "H", "K", "d"), [(1, 40, 2, 1, 12), (19, 96, 3, 1, 64), (70, 128, 4, 2, 32)]
)
def test_heads_are_projected_normalised_and_rotated(
    R: int, D: int, H: int, K: int, d: int, normed: bool, biased: bool
) -> None:
    from counterpoise.sample.kernels.products import heads_product

    x, norm_weight = random(R, D, seed=0), 1 + 0.1 * random(D, seed=1)
    weight = random((H + 2 * K) * d, D, seed=2) / D**0.5
    biases = tuple(random(heads * d, seed=3 + heads) for heads in (H, K, K)) if biased else None
    head_norms = (1 + 0.1 * random(d, seed=8), 1 + 0.1 * random(d, seed=9)) if normed else None
    angles = random(50, d // 2, seed=10).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    positions = torch.randint(50, (R,), generator=torch.Generator().manual_seed(11)).to(DEVICE)
    fused = heads_product(
        x, norm_weight, weight, biases, head_norms,
        rotary_table=(cos, sin), positions=positions, heads=H, kv_heads=K, epsilon=EPSILON,
    )  # fmt: skip

    h = F.rms_norm(x, (D,), norm_weight, EPSILON)
    qkv = F.linear(h, weight, torch.cat(biases) if biases else None).view(R, H + 2 * K, d)
    separate = split_heads(qkv, head_norms, cos[positions], sin[positions], H, K, EPSILON)
    for left, right in zip(fused, separate, strict=True):
        assert left.shape == right.shape
        torch.testing.assert_close(left, right, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("R", "D", "width"), [(1, 40, 24), (17, 96, 130), (70, 128, 64)])
def test_gate_and_up_are_one_product(R: int, D: int, width: int) -> None:
    from counterpoise.sample.kernels.products import gated_product

    x, norm_weight = random(R, D, seed=0), 1 + 0.1 * random(D, seed=1)
    weight = random(2 * width, D, seed=2) / D**0.5
    gate, up = F.linear(F.rms_norm(x, (D,), norm_weight, EPSILON), weight).chunk(2, dim=1)
    fused = gated_product(x, norm_weight, weight, EPSILON)
    torch.testing.assert_close(fused, F.silu(gate) * up, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("R", "D", "E"), [(1, 24, 40), (17, 130, 96), (70, 64, 128)])
def test_a_product_is_added_in_place(R: int, D: int, E: int, biased: bool) -> None:
    from counterpoise.sample.kernels.products import add_product

    x, inputs, weight = random(R, D, seed=0), random(R, E, seed=1), random(D, E, seed=2) / E**0.5
    bias = random(D, seed=3) if biased else None
    expected = x + F.linear(inputs, weight, bias)
    added = add_product(x, inputs, weight, bias)
    assert added.data_ptr() == x.data_ptr()
    torch.testing.assert_close(x, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_decoding_step_is_that_of_the_decoder(
    architecture: str, chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterpoise.sample.kernels import products

    # What a chain computes does not need its launches, which only Hopper and later GPUs have.
    monkeypatch.setattr(products, "launch_options", lambda chained: {"chained": False})
    policy = tiny.policy(architecture)
    policy.model.to(DEVICE)
    decoder = Decoder(policy.model)
    assert supports_fused_products(decoder)
    tokens = torch.tensor([3, 7, 1, 5, 2], device=DEVICE)
    positions = torch.tensor([0, 4, 9, 2, 2], device=DEVICE)

    def attend(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None = None
    ) -> torch.Tensor:
        """Every row attends to the new keys of all rows."""
        assert window is None
        group = q.shape[1] // k.shape[1]
        keys, values = (part.repeat_interleave(group, dim=1).transpose(0, 1) for part in (k, v))
        scores = q.transpose(0, 1) @ keys.transpose(1, 2) * q.shape[-1] ** -0.5
        return (scores.softmax(dim=-1) @ values).transpose(0, 1)

    with torch.no_grad():
        decoder.reserve(64)
        fused = decode_layers(decoder, tokens, positions, attend, chained=chained)
        separate = decoder(tokens, positions, attend)
    torch.testing.assert_close(fused, separate, atol=2e-5, rtol=1e-4)
