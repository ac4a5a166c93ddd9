"""`decompose` against eq. 8 and 9 written out, against autograd, and where it must refuse."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tiny
import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.coupling import Coupling, decompose, decompose_residuals
from counterpoise.model import coupling_sums, residuals

F64 = torch.float64


def made_up(
    N: int, V: int, D: int, groups: int, seed: int = 0, dtype: torch.dtype = F64
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Frequent and rare tokens, some advantages 0, groups of very different sizes."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, D, generator=g, dtype=F64)
    W = 0.5 * torch.randn(V, D, generator=g, dtype=F64)
    tokens = (torch.rand(N, generator=g) ** 3 * V).long()
    advantages = torch.randn(N, generator=g, dtype=F64)
    advantages[::7] = 0
    queries = (torch.rand(N, generator=g) ** 2 * groups).long()
    return hidden.to(dtype), W.to(dtype), tokens, advantages.to(dtype), queries


def by_the_book(
    hidden: Tensor, W: Tensor, tokens: Tensor, A: Tensor, groups: Tensor, eta: float
) -> tuple[Tensor, dict[tuple[str, str, str], Tensor]]:
    """(own, parts) from eq. 8 and 9, pair by pair: O(N^2)."""
    pi = torch.softmax(hidden @ W.T, dim=-1)
    at = pi[:, tokens]  # at[j, k] = pi_j(o_k)
    equal = tokens[:, None] == tokens[None]
    phi = equal.to(F64) - at - at.T + pi @ pi.T
    push = eta / len(tokens) * A[None] * (hidden @ hidden.T) * phi  # of k on j
    own = push.diagonal().clone()
    push.fill_diagonal_(0)
    query = groups[:, None] == groups[None]
    where = {
        "identity": {"same": equal, "other": ~equal},
        "query": {"same": query, "other": ~query},
        "sign": {"positive": (A > 0)[None], "negative": (A < 0)[None]},
    }
    return own, {
        (i, q, s): (push * (where["identity"][i] & where["query"][q] & where["sign"][s])).sum(dim=1)
        for i in ("same", "other")
        for q in ("same", "other")
        for s in ("positive", "negative")
    }


def decompose_in_precision(
    batch: Sequence[Tensor], precision: torch.dtype, eta: float = 1.0
) -> Coupling:
    hidden, W, tokens, advantages, groups = batch
    factors = residuals.Residuals(hidden, W, tokens, precision=precision)
    return decompose_residuals(factors, tokens, advantages, groups, eta=eta)


def worst(found: Coupling, own: Tensor, parts: dict[tuple[str, str, str], Tensor]) -> float:
    """Largest deviation relative to the largest part of its kind."""
    errors = [(found.self_push.double() - own).abs().max() / own.abs().max()]
    for key, values in parts.items():
        scale = values.abs().max().clamp(min=1e-12)
        errors.append((found.parts[key].double() - values).abs().max() / scale)
    return max(float(e) for e in errors)


SHAPES = [(40, 11, 6, 3), (300, 37, 16, 7), (900, 29, 8, 2), (700, 600, 12, 40)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_pairwise_sum(shape: tuple[int, int, int, int]) -> None:
    batch = made_up(*shape)
    own, parts = by_the_book(*batch, eta=0.3)
    found = decompose(*batch, eta=0.3)
    assert worst(found, own, parts) < 1e-10
    whole = own + torch.stack(list(parts.values())).sum(dim=0)
    torch.testing.assert_close(found.total, whole, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("base", [1, 8, 64])
@pytest.mark.parametrize("chunk", [1, 50, 1000])
def test_any_chunking_gives_the_same(
    chunk: int, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets larger than a chunk, as large as it, and far smaller take different paths."""
    batch = made_up(300, 37, 16, 4)
    own, parts = by_the_book(*batch, eta=1.0)
    monkeypatch.setitem(residuals.CHUNK_BYTES, "cpu", chunk * 37 * 8)
    monkeypatch.setitem(coupling_sums.ROW_WIDTH, "cpu", base)
    assert worst(decompose(*batch), own, parts) < 1e-10


def test_float32_and_bfloat16_inputs_are_summed_in_float32() -> None:
    batch = made_up(400, 50, 24, 5)
    own, parts = by_the_book(*batch, eta=1.0)
    single = decompose(*(x.float() if x.is_floating_point() else x for x in batch))
    assert single.total.dtype == torch.float32
    assert worst(single, own, parts) < 1e-4
    rounded = [x.bfloat16() if x.is_floating_point() else x for x in batch]
    own, parts = by_the_book(*(x.double() if x.is_floating_point() else x for x in rounded), 1.0)
    half = decompose(*rounded)
    assert half.total.dtype == torch.float32
    assert worst(half, own, parts) < 1e-4  # of the rounded inputs, nothing is lost on top


@pytest.mark.parametrize(("precision", "most"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e6])
def test_half_precision_rounds_and_overflows_nowhere(
    precision: torch.dtype, most: float, unit: float
) -> None:
    """A float16 ends at 65504 and at 6e-8; advantages of any size must fit."""
    hidden, W, tokens, A, groups = made_up(400, 50, 24, 5)
    own, parts = by_the_book(hidden, W, tokens, unit * A, groups, eta=1 / unit)
    single = (hidden.float(), W.float(), tokens, (unit * A).float(), groups)
    found = decompose_in_precision(single, precision, eta=1 / unit)
    assert found.total.dtype == torch.float32
    assert worst(found, own, parts) < most


def test_signs_own_and_cancellation_fit_together() -> None:
    found = decompose(*made_up(300, 37, 16, 7))
    torch.testing.assert_close(found.positive + found.negative, found.total)
    torch.testing.assert_close(found.from_others + found.self_push, found.total)
    for sign in ("positive", "negative"):
        of_sign = torch.stack([v for (_, _, s), v in found.parts.items() if s == sign]).sum(dim=0)
        own = found.self_push.clamp(min=0) if sign == "positive" else found.self_push.clamp(max=0)
        torch.testing.assert_close(of_sign + own, getattr(found, sign))
    assert bool(((found.cancellation >= 0) & (found.cancellation <= 1)).all())


def test_opposite_twins_cancel_and_a_lone_token_has_only_itself() -> None:
    hidden, W, tokens, _, groups = made_up(1, 9, 4, 1)
    twins = [x.repeat(2, *[1] * (x.dim() - 1)) for x in (hidden, tokens, groups)]
    found = decompose(twins[0], W, twins[1], torch.tensor([1.0, -1.0], dtype=F64), twins[2])
    assert found.total.abs().max() < 1e-15
    assert found.cancellation.tolist() == pytest.approx([1.0, 1.0])
    alone = decompose(hidden, W, tokens, torch.tensor([2.0], dtype=F64), groups)
    r = -torch.softmax(hidden @ W.T, dim=-1)
    r[0, tokens] += 1
    assert alone.self_push.item() == pytest.approx(
        2 * r.square().sum().item() * hidden.square().sum().item()
    )
    largest = max(float(values.abs().max()) for values in alone.parts.values())
    assert largest < 1e-12 * abs(alone.self_push.item())


def test_one_sign_only_cancels_nothing_and_no_signal_moves_nothing() -> None:
    hidden, W, tokens, A, groups = made_up(60, 11, 6, 3)
    one_sided = decompose(hidden, W, tokens, A.abs(), groups)
    assert float(one_sided.negative.abs().max()) == 0
    assert float(one_sided.cancellation.abs().max()) < 1e-12
    still = decompose(hidden, W, tokens, torch.zeros_like(A), groups)  # all rewards equal
    assert float(still.total.abs().max()) == 0
    assert float(still.cancellation.max()) == 0


def test_a_batch_of_one_group_has_no_part_from_other_queries() -> None:
    hidden, W, tokens, A, groups = made_up(80, 11, 6, 3)
    found = decompose(hidden, W, tokens, A, torch.zeros_like(groups))
    scale = found.total.abs().max()
    for (_, query, _), values in found.parts.items():
        if query == "other":
            assert float(values.abs().max() / scale) < 1e-12


def test_equals_autograd_of_the_output_layer() -> None:
    """delta_j = <g_j, sum_k A_k g_k> / N with g from autograd on a copy of W."""
    policy = tiny.policy(tie_word_embeddings=True)
    policy.model.double()
    seen = take_snapshot(policy, tiny.rows())
    W = policy.decoder.unembedding.detach().clone().requires_grad_()
    logprobs = torch.log_softmax(seen.hidden @ W.T, dim=-1).gather(1, seen.tokens[:, None])[:, 0]
    A = seen.advantages.double()
    (M,) = torch.autograd.grad((A * logprobs).sum() / len(seen), W, retain_graph=True)
    moved = [
        (torch.autograd.grad(lp, W, retain_graph=True)[0] * M).sum() for lp in logprobs.unbind()
    ]
    found = decompose(seen.hidden, W.detach(), seen.tokens, A, seen.groups)
    torch.testing.assert_close(found.total, torch.stack(moved), rtol=1e-10, atol=1e-12)


def test_what_makes_no_sense_is_refused_in_one_line() -> None:
    hidden, W, tokens, A, groups = made_up(20, 11, 6, 3)
    broken = A.clone()
    broken[3] = torch.nan
    for batch, words in (
        ((hidden, W, tokens, broken, groups), "not finite"),
        ((hidden, W, tokens + 9, A, groups), "vocabulary of 11"),
        ((hidden[:, :5], W, tokens, A, groups), "do not fit"),
        ((hidden, W, tokens[:-1], A, groups), "one of each"),
        ((hidden[:0], W, tokens[:0], A[:0], groups[:0]), "no tokens"),
        (
            (hidden, W, tokens.tolist(), A, groups),
            r"^tokens must be a torch tensor \[N\], not list",
        ),
        ((hidden[None], W, tokens, A, groups), r"^hidden has the shape \[1, 20, 6\], not \[N, D\]"),
        (
            (hidden, W, tokens, A[:, None], groups),
            r"^advantages has the shape \[20, 1\], not \[N\]",
        ),
    ):
        with pytest.raises(PoiseError, match=words) as fault:
            decompose(*batch)
        assert "\n" not in str(fault.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_on_a_gpu() -> None:
    batch = made_up(900, 600, 64, 7)
    own, parts = by_the_book(*batch, eta=1.0)
    found = decompose(*(x.cuda() for x in batch))
    assert found.total.is_cuda
    assert worst(found.cpu(), own, parts) < 1e-10
    single = [x.float().cuda() if x.is_floating_point() else x.cuda() for x in batch]
    assert worst(decompose(*single).cpu(), own, parts) < 1e-3
    for precision, most in ((torch.float16, 4e-3), (torch.bfloat16, 4e-2)):
        assert worst(decompose_in_precision(single, precision).cpu(), own, parts) < most
