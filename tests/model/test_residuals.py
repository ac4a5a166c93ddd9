from __future__ import annotations

import pytest
import torch

from counterpoise.microscope.batch_tokens import token_residuals as errors_of
from counterpoise.model.residuals import CHUNK_BYTES, HALF_DTYPES, Residuals, accurate_product

N, V, D = 30, 23, 6


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(N, D).double(), torch.randn(V, D).double(), torch.randint(V, (N,))


@pytest.mark.parametrize("memory", [1, 7 * V * 8, 1 << 20])
def test_kept_or_computed_again_they_are_minus_r(batch, memory, monkeypatch) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", memory)
    hidden, W, tokens = batch
    errors = Residuals(hidden, W, tokens)
    assert (errors.stored_residuals is None) == (memory < N * V * 8)
    expected = -errors_of(hidden, W, tokens)
    places = torch.tensor([[3, 3, 0], [29, 7, 1]])
    R, H = errors.gather(places)
    torch.testing.assert_close(R, expected[places])
    torch.testing.assert_close(H, hidden[places])
    parts = list(errors.iterate_chunks())
    torch.testing.assert_close(torch.cat([R for _, R, _ in parts]), expected)
    assert [part.start for part, _, _ in parts] == list(range(0, N, min(errors.chunk_size, N)))


@pytest.mark.parametrize("precision", HALF_DTYPES)
def test_half_precision_keeps_what_a_confident_token_is_unsure_of(precision) -> None:
    """1 - pi(o) = 1e-4 is far below what rounding pi(o) itself would leave of it."""
    W = torch.eye(4)
    hidden = torch.tensor([[torch.log(torch.tensor(3 / 1e-4)), 0.0, 0.0, 0.0]])  # others: e^0 each
    R, _ = Residuals(hidden, W, torch.tensor([0]), precision=precision).gather(torch.tensor([0]))
    bits = {torch.float16: 2**-7, torch.bfloat16: 2**-4}[precision]  # the logit itself is rounded
    assert R[0, 0].item() == pytest.approx(-1e-4, rel=bits)
    assert abs(float(R.float().sum())) < 1e-6


@pytest.mark.parametrize("precision", HALF_DTYPES)
def test_products_of_half_precision_are_summed_in_float32(precision) -> None:
    ones = torch.ones(2, 3, 5000, dtype=precision)
    found = accurate_product(ones, ones.mT)  # 5000 is not a number of bfloat16
    assert found.dtype == torch.float32
    assert found.unique().tolist() == [5000.0]
    assert accurate_product(ones[0], ones[0].T).shape == (3, 3)
