"""Flash attention over shared prompts against padded attention in float32, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from counterpoise.model.attention import PaddedAttention
from counterpoise.model.flash import FlashAttention, find_segments, flash_backward, flash_forward
from counterpoise.model.packing import pack, pack_prompts

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def rows(
    seed: int = 0, groups: int = 4, size: int = 3
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    prompts, responses = [], []
    for _ in range(groups):
        prompt = rng.integers(0, 50, rng.integers(1, 90)).astype(np.int32)
        for _ in range(size):
            prompts.append(prompt)
            responses.append(rng.integers(0, 50, rng.integers(1, 150)).astype(np.int32))
    responses[4] = responses[4][:1]  # a response of one token adds nothing to the pass
    return prompts, responses


def test_segments_bound_prompts_and_their_readers() -> None:
    prompt_a, prompt_b = np.arange(3, dtype=np.int32), np.arange(5, dtype=np.int32)
    responses = [np.zeros(n, dtype=np.int32) for n in (4, 1, 2)]
    at = find_segments(pack([prompt_a, prompt_a, prompt_b], responses, torch.device("cpu")))
    assert at is not None
    assert at.prompt_tokens == 8
    assert at.all_bounds.tolist() == [0, 3, 8, 11, 12]
    assert at.prompt_bounds.tolist() == [0, 3, 8]
    assert at.reader_bounds is not None
    assert at.reader_bounds.tolist() == [0, 3, 4]
    assert (at.longest_segment, at.longest_prompt, at.longest_reader) == (5, 5, 3)


def test_scattered_groups_are_left_to_padded_attention() -> None:
    a, b = np.arange(3, dtype=np.int32), np.arange(5, dtype=np.int32)
    packing = pack([a, b, a], [a, a, a], torch.device("cpu"))
    assert find_segments(packing) is None


def test_prompts_alone_have_no_readers() -> None:
    at = find_segments(pack_prompts([np.arange(3), np.arange(2)], torch.device("cpu")))
    assert at is not None
    assert at.reader_bounds is None


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("H", "K", "d"), [(9, 3, 64), (16, 8, 128), (4, 4, 32)])
@pytest.mark.parametrize("alone", [False, True])
def test_flash_equals_padded(H: int, K: int, d: int, alone: bool) -> None:
    device = torch.device("cuda")
    prompts, responses = rows()
    packing = pack_prompts(prompts, device) if alone else pack(prompts, responses, device)
    N = len(packing.tokens_N)
    generator = torch.Generator(device).manual_seed(0)
    joint = torch.randn(N, H + 2 * K, d, device=device, generator=generator)
    upstream = torch.randn(N, H, d, device=device, generator=generator)

    exact_leaf = joint.clone().requires_grad_()
    exact = PaddedAttention(packing)(0, *exact_leaf.split((H, K, K), dim=1))
    exact.backward(upstream)
    segments = find_segments(packing)
    half = joint.bfloat16().split((H, K, K), dim=1)
    outputs = flash_forward(*half, segments)
    grads = flash_backward(upstream.bfloat16(), *half, outputs, segments)
    assert relative(outputs.out, exact) < 0.01
    assert relative(torch.cat(grads, dim=1), exact_leaf.grad) < 0.015
    leaf = joint.bfloat16().requires_grad_()
    FlashAttention.apply(*leaf.split((H, K, K), dim=1), segments).backward(upstream.bfloat16())
    assert relative(leaf.grad, exact_leaf.grad) < 0.015


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())
