"""The sampler's Triton kernels against their formulas in torch."""

from __future__ import annotations

import pytest
import torch
from kernel_device import DEVICE

from counterpoise.sample.choose_token import choose_tokens
from counterpoise.sample.kv_slots import SlotAddresses, reference_attention


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("parts", ["", "2", "8"])
@pytest.mark.parametrize("step", [0, 1, 70])
@pytest.mark.parametrize(("H", "K", "d"), [(9, 3, 64), (4, 4, 12), (4, 1, 40), (16, 8, 128)])
def test_decode_attention(
    parts: str, step: int, H: int, K: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterpoise.sample.kernels.attention import decode_attention

    monkeypatch.setenv("POISE_DECODE_PARTS", parts)
    R, slots, room = 4, 6, 72
    rows = torch.tensor([5, 0, 3, 1], device=DEVICE)
    firsts = torch.tensor([0, 3, 3, 80, 7, 1], device=DEVICE)
    lengths = torch.tensor([3, 77, 1, 0, 2, 65], device=DEVICE)
    joint = random(R, H + 2 * K, d)
    q, k, v = joint.split((H, K, K), dim=1)
    prefix = random(100, K, d, seed=1), random(100, K, d, seed=2)
    own = random(slots, K, room, d, seed=3), random(slots, K, room, d, seed=4)
    copied = own[0].clone(), own[1].clone()
    steps = torch.tensor([step, 0, step // 2, step], device=DEVICE)  # rows started at will
    addresses = SlotAddresses(rows, firsts, lengths, lengths[rows] + steps)
    kernel = decode_attention(q, k, v, prefix, own, addresses)
    plain = reference_attention(q, k, v, prefix, copied, addresses)
    torch.testing.assert_close(kernel, plain, atol=1e-5, rtol=1e-4)
    for left, right in zip(own, copied, strict=True):
        torch.testing.assert_close(left, right, atol=0, rtol=0)


@pytest.mark.parametrize("parts", ["", "4"])
@pytest.mark.parametrize("step", [0, 63, 70])
@pytest.mark.parametrize(("H", "K", "d"), [(9, 3, 64), (4, 1, 40)])
def test_decode_attention_by_pages(
    parts: str, step: int, H: int, K: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages in any order: what attention to rows without pages gives."""
    from counterpoise.sample.kernels.attention import decode_attention

    monkeypatch.setenv("POISE_DECODE_PARTS", parts)
    R, slots, pages_of_row, page_tokens = 4, 6, 5, 16
    rows = torch.tensor([5, 0, 3, 1], device=DEVICE)
    firsts = torch.tensor([0, 3, 3, 80, 7, 1], device=DEVICE)
    lengths = torch.tensor([3, 77, 1, 0, 2, 65], device=DEVICE)
    steps = torch.tensor([step, 15, step // 2, 16], device=DEVICE)
    q, k, v = random(R, H + 2 * K, d).split((H, K, K), dim=1)
    prefix = random(100, K, d, seed=1), random(100, K, d, seed=2)
    pages = random(30, K, page_tokens, d, seed=3), random(30, K, page_tokens, d, seed=4)
    table = torch.randperm(30, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    table = table.int().view(slots, pages_of_row)

    def without_pages() -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (memory[table.long()].transpose(1, 2).flatten(2, 3) for memory in pages)
        return keys, values

    contiguous = without_pages()
    addresses = SlotAddresses(rows, firsts, lengths, lengths[rows] + steps)
    plain = reference_attention(q, k, v, prefix, contiguous, addresses)
    kernel = decode_attention(q, k, v, prefix, pages, addresses._replace(page_table=table))
    torch.testing.assert_close(kernel, plain, atol=1e-5, rtol=1e-4)
    for left, right in zip(without_pages(), contiguous, strict=True):
        torch.testing.assert_close(left, right, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(1.0, 1.0, 0), (0.6, 1.0, 0), (0.6, 0.9, 0), (1.0, 1.0, 5), (0.8, 0.7, 20), (1.0, 0.5, 9999)],
)
@pytest.mark.parametrize("V", [50, 1024, 3000])
def test_draw(V: int, temperature: float, top_p: float, top_k: int) -> None:
    from counterpoise.sample.kernels.draw import draw_tokens

    R, slots, room, step, offset = 5, 7, 4, 1, 1
    t = step + offset
    logits = 3 * random(R, V)
    logits[0, 2] = -torch.inf
    rows = torch.tensor([6, 0, 2, 3, 5], device=DEVICE)
    uniforms = torch.rand(slots, room, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    uniforms[2, t], uniforms[3, t] = 0.0, 1.0 - 2**-24
    tokens = torch.zeros(slots, room, dtype=torch.long, device=DEVICE)
    logprobs = torch.zeros(slots, room, device=DEVICE)
    current = torch.zeros(R, dtype=torch.long, device=DEVICE)
    running = torch.tensor([True, True, True, True, False], device=DEVICE)
    limits = torch.full((slots,), 9, device=DEVICE)
    limits[0] = t + 1
    prefix_lengths = torch.arange(slots, device=DEVICE)
    positions = prefix_lengths[rows] + step
    positions_before = positions.clone()
    expected, expected_logprobs = choose_tokens(
        logits, uniforms[rows, t], temperature, top_p, top_k
    )
    ends = torch.stack((expected[2], torch.tensor(V, device=DEVICE)))
    draw_tokens(
        logits, rows, uniforms, prefix_lengths, ends, limits,
        tokens, logprobs, current, positions, running,
        temperature=temperature, top_p=top_p, top_k=top_k, offset=offset,
    )  # fmt: skip
    # Row 4 had finished before: it stands still.
    torch.testing.assert_close(tokens[rows[:4], t], expected[:4])
    torch.testing.assert_close(current[:4], expected[:4])
    torch.testing.assert_close(logprobs[rows[:4], t], expected_logprobs[:4], atol=1e-5, rtol=1e-5)
    assert (positions - positions_before).tolist() == [1, 1, 1, 1, 0]
    assert (int(tokens[rows[4]].sum()), int(current[4])) == (0, 0)
    ended = [bool(token == expected[2]) for token in expected]
    assert running.tolist() == [
        not ended[0], False, False, not ended[3], False,
    ]  # row 1 is at its limit, row 2 drew an end token, row 4 had finished  # fmt: skip
    assert int((tokens != 0).sum()) <= R


@pytest.mark.parametrize(("top_p", "top_k"), [(0.5, 0), (1.0, 3)])
def test_ties_are_all_kept(top_p: float, top_k: int) -> None:
    """One likely token and five that tie for the next place, in both blocks of the vocabulary."""
    from counterpoise.sample.kernels.draw import draw_tokens

    V, R = 1500, 64
    logits = torch.full((R, V), -20.0, device=DEVICE)
    tied = [3, 700, 1023, 1024, 1400]
    logits[:, tied], logits[:, 900] = 1.0, 2.0
    uniforms = ((torch.arange(R) + 0.5) / R)[:, None].to(DEVICE)
    tokens = torch.zeros(R, 1, dtype=torch.long, device=DEVICE)
    current, limits = (torch.full((R,), n, device=DEVICE) for n in (0, 9))
    rows = torch.arange(R, device=DEVICE)
    lengths, positions = (torch.zeros(R, dtype=torch.long, device=DEVICE) for _ in range(2))
    running = torch.ones(R, dtype=torch.bool, device=DEVICE)
    draw_tokens(
        logits, rows, uniforms, lengths, torch.tensor([-1], device=DEVICE), limits, tokens,
        torch.zeros(R, 1, device=DEVICE), current, positions, running,
        temperature=1.0, top_p=top_p, top_k=top_k, offset=0,
    )  # fmt: skip
    expected, _ = choose_tokens(logits, uniforms[:, 0], 1.0, top_p, top_k)
    torch.testing.assert_close(current, expected)
    assert set(current.tolist()) == {*tied, 900}
