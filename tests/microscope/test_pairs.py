from __future__ import annotations

import pytest
import tiny
import torch

from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot, token_residuals
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.pairs import (
    gradient_norms,
    kernel_rows,
    pair_coupling,
    strongest_pushes,
)
from counterpoise.model.residuals import CHUNK_BYTES, Residuals

N_TOKENS = 40


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(hidden, W, tokens, advantages) in float64, with a vocabulary small enough for repeats."""
    torch.manual_seed(0)
    hidden, W = torch.randn(N_TOKENS, 7).double(), 0.7 * torch.randn(9, 7).double()
    return hidden, W, torch.randint(9, (N_TOKENS,)), torch.randn(N_TOKENS).double()


def test_phi_is_equation_8_term_by_term(batch) -> None:
    hidden, W, tokens, _ = batch
    j, k = torch.randint(N_TOKENS, (2, 200))
    found = pair_coupling(hidden, W, tokens, j, k)
    pi = torch.softmax(hidden @ W.T, dim=1)
    for n in range(200):
        p, q, a, b = pi[j[n]], pi[k[n]], tokens[j[n]], tokens[k[n]]
        phi = float(a == b) - p[b] - q[a] + p @ q
        assert found.phi[n].item() == pytest.approx(phi.item(), abs=1e-12)
        assert found.similarity[n].item() == pytest.approx((hidden[j[n]] @ hidden[k[n]]).item())


def test_equation_10_leaves_out_the_shared_alternatives(batch) -> None:
    hidden, W, tokens, _ = batch
    j, k = torch.cartesian_prod(torch.arange(N_TOKENS), torch.arange(N_TOKENS)).T
    found = pair_coupling(hidden, W, tokens, j, k)
    equal = tokens[j] == tokens[k]
    assert found.printed_phi[~equal].isnan().all()
    assert found.alternatives[~equal].isnan().all()
    pi = torch.softmax(hidden @ W.T, dim=1)
    for n in equal.nonzero().squeeze(1).tolist():
        p, q, o = pi[j[n]], pi[k[n]], tokens[j[n]]
        rest = sum(float(p[v] * q[v]) for v in range(9) if v != o)
        assert found.printed_phi[n].item() == pytest.approx(
            float((1 - p[o]) * (1 - q[o])), abs=1e-12
        )
        assert found.alternatives[n].item() == pytest.approx(rest, abs=1e-12)
    assert (found.alternatives[equal] > 0).all()


def test_two_words_alone_share_all_their_alternatives() -> None:
    """With two words phi = 2 (1 - p)(1 - q) for equal tokens: eq. 10 prints half of it."""
    hidden, W = torch.randn(2, 3).double(), torch.randn(2, 3).double()
    found = pair_coupling(hidden, W, torch.tensor([1, 1]), torch.tensor([0]), torch.tensor([1]))
    assert found.phi.item() == pytest.approx(2 * found.printed_phi.item())


@pytest.mark.parametrize("chunk", [1, 5 * 9 * 8, 1 << 20])
def test_kernel_is_the_product_of_both_factors(batch, chunk, monkeypatch) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", chunk)
    hidden, W, tokens, _ = batch
    watched = torch.tensor([3, 0, 39, 3])
    K = kernel_rows(hidden, W, tokens, watched)
    j = watched.repeat_interleave(N_TOKENS)
    k = torch.arange(N_TOKENS).repeat(4)
    found = pair_coupling(hidden, W, tokens, j, k)
    torch.testing.assert_close(K.flatten(), found.similarity * found.phi)
    squares = kernel_rows(hidden, W, tokens, torch.arange(N_TOKENS)).diagonal()
    torch.testing.assert_close(gradient_norms(hidden, W, tokens).square(), squares)


def test_kernel_is_the_inner_product_of_output_layer_gradients(batch) -> None:
    hidden, W, tokens, _ = batch
    R = token_residuals(hidden, W, tokens)
    G = torch.einsum("nv,nd->nvd", R, hidden).flatten(1)
    torch.testing.assert_close(kernel_rows(hidden, W, tokens, torch.arange(N_TOKENS)), G @ G.T)


@pytest.mark.parametrize("chunk", [1, 5 * 9 * 8, 1 << 20])
def test_strongest_are_those_of_the_sorted_row(batch, chunk, monkeypatch) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", chunk)
    hidden, W, tokens, advantages = batch
    watched = torch.tensor([5, 17])
    found = strongest_pushes(Residuals(hidden, W, tokens), advantages, watched, top=4, eta=0.3)
    push = kernel_rows(hidden, W, tokens, watched) * advantages * 0.3 / N_TOKENS
    for n, j in enumerate(watched.tolist()):
        others = [(push[n, k].item(), k) for k in range(N_TOKENS) if k != j]
        up, down = sorted(others, reverse=True)[:4], sorted(others)[:4]
        assert found.sources[n].tolist() == [k for _, k in up + down]
        torch.testing.assert_close(
            found.strengths[n], torch.tensor([value for value, _ in up + down]).double()
        )


def test_all_pushes_of_a_token_add_up_to_its_coupling(batch) -> None:
    hidden, W, tokens, advantages = batch
    watched = torch.arange(N_TOKENS)
    found = strongest_pushes(
        Residuals(hidden, W, tokens), advantages, watched, top=N_TOKENS, eta=1.0
    )
    coupled = decompose(hidden, W, tokens, advantages, torch.zeros(N_TOKENS).long()).from_others
    torch.testing.assert_close(found.strengths.sum(dim=1), coupled)


def test_a_token_alone_is_pushed_by_nobody(batch) -> None:
    hidden, W, tokens, advantages = (batch[0][:1], batch[1], batch[2][:1], batch[3][:1])
    found = strongest_pushes(Residuals(hidden, W, tokens), advantages, torch.tensor([0]))
    assert found.sources.shape == found.strengths.shape == (1, 0)


def test_half_precision_is_computed_in_float32() -> None:
    policy = tiny.policy()
    seen: Snapshot = take_snapshot(policy, tiny.rows())
    hidden, W = seen.hidden.bfloat16(), policy.decoder.unembedding.detach().bfloat16()
    exact = kernel_rows(hidden.float(), W.float(), seen.tokens, torch.arange(5))
    torch.testing.assert_close(kernel_rows(hidden, W, seen.tokens, torch.arange(5)), exact)


def test_strongest_pushes_in_half_precision_are_the_same_pushes(batch) -> None:
    hidden, W, tokens, advantages = batch
    watched = torch.arange(0, N_TOKENS, 5)
    exact = strongest_pushes(Residuals(hidden, W, tokens), advantages, watched, top=3)
    rough = Residuals(hidden.float(), W.float(), tokens, precision=torch.float16)
    found = strongest_pushes(rough, advantages, watched, top=3)
    torch.testing.assert_close(found.strengths.double(), exact.strengths, rtol=0.02, atol=1e-4)
    assert float((found.sources == exact.sources).float().mean()) > 0.9
