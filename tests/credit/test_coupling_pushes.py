"""Sums over the microscope's sets are those over the kernel, one pair of gradients at a time."""

from __future__ import annotations

import numpy as np
import one_by_one
import pytest
import tiny

from counterpoise.credit.coupling_pushes import split_tokens, sum_pushes
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.model import residuals as errors_module

ROWS = tiny.rows(groups=3, size=3, seed=4, longest=9)


def slow(K: np.ndarray, coefficients: list[float], together) -> np.ndarray:
    """[N, 2]: for every token the pushes of those that belong to its set, by their sign."""
    row = one_by_one.row_of(ROWS)
    found = np.zeros((len(row), 2))
    for j in range(len(row)):
        for k in range(len(row)):
            if together(j, k):
                c = coefficients[row[k]]
                found[j, 0 if c > 0 else 1] += c * K[j, k]
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("large", [False, True])
def test_every_set(temperature: float, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny.policy()
    if large:  # groups are summed up by M, a few tokens at a time
        monkeypatch.setitem(errors_module.CHUNK_BYTES, "cpu", 97 * 4 * 8)
    coefficients = [row.advantage for row in ROWS]
    view = CreditView(ROWS, PolicyReader(policy, temperature))
    seen = sum_pushes(view, coefficients, include_batch=True)
    K, row = one_by_one.kernel(policy, ROWS, temperature), one_by_one.row_of(ROWS)
    group = [ROWS[i].group for i in row]
    scale = np.abs(K).max()
    for found, together in (
        (seen.by_itself, lambda j, k: j == k),
        (seen.by_row, lambda j, k: row[j] == row[k]),
        (seen.by_group, lambda j, k: group[j] == group[k]),
        (seen.by_batch, lambda j, k: True),
    ):
        np.testing.assert_allclose(found, slow(K, coefficients, together), atol=2e-5 * scale)
    assert sum_pushes(view, coefficients).by_batch is None  # not asked for


def test_flat_tokens_go_back_to_their_rows() -> None:
    parts = split_tokens(np.arange(sum(row.num_tokens for row in ROWS)), ROWS)
    assert [len(part) for part in parts] == [row.num_tokens for row in ROWS]
    assert np.concatenate(parts).tolist() == list(range(sum(row.num_tokens for row in ROWS)))


def test_a_host_that_keeps_its_policy_is_told() -> None:
    with pytest.raises(PoiseError, match="need the policy"):
        sum_pushes(CreditView(ROWS), [1.0] * len(ROWS))
