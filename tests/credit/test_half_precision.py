"""Methods that read hidden states, by a policy in bfloat16: finite, and near those in float32."""

from __future__ import annotations

import numpy as np
import one_by_one
import pytest
import tiny

from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.model.load import wrap_model
from counterpoise.variants import TOKEN_WEIGHTS

ROWS = one_by_one.with_advantages(
    tiny.rows(groups=2, size=4, seed=9, longest=12), [1, -1, -1, 1, 3, -1, -1, -1]
)


@pytest.mark.parametrize("name", ["cancellation", "nthr", "thr", "high_entropy", "gtpo", "shear"])
def test_bfloat16(name: str) -> None:
    half = wrap_model("qwen3", tiny.policy().model.bfloat16(), tiny.Words())
    weights = TOKEN_WEIGHTS.load(name)
    found = np.concatenate(weights(CreditView(ROWS, PolicyReader(half, 0.9))))
    exact = np.concatenate(weights(CreditView(ROWS, PolicyReader(tiny.policy(), 0.9))))
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    near = np.abs(found - exact) < 0.1
    assert near.mean() > 0.8  # a threshold may fall the other way for a few
