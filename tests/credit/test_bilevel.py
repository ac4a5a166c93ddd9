"""Importances -> weights, against the formula in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.credit.bilevel import reshape_importance


def reference(importance: list[float], q: float, beta: float) -> list[float]:
    a = [math.log(1 + x) for x in importance]
    low, high = min(a), max(a)
    n = [(x - low) / (high - low) for x in a]
    ordered = sorted(n)
    place = q * (len(n) - 1)
    below = math.floor(place)
    above = min(below + 1, len(n) - 1)
    tau = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    w = []
    for x in n:
        if x < tau:
            w.append(max(x / (tau + 1e-8), 0.1))
        else:
            w.append(1 + beta * (x - tau) / (1 - tau + 1e-8))
    return [x * len(w) / sum(w) for x in w]


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=40).filter(lambda x: min(x) < max(x)),
    st.sampled_from([0.0, 0.25, 0.4, 0.9]),
    st.sampled_from([0.0, 1.0, 2.0]),
)
def test_against_the_formula(counts: list[int], q: float, beta: float) -> None:
    importance = [0.01 * x for x in counts]
    found = reshape_importance(np.array(importance), q, beta)
    np.testing.assert_allclose(found, reference(importance, q, beta), rtol=1e-5, atol=1e-7)
    assert found.min() > 0
    assert found.mean() == pytest.approx(1, rel=1e-5)


def test_by_hand() -> None:
    importance = np.expm1([0.0, 1.0, 2.0, 3.0, 4.0])  # n = 0, 1/4, 1/2, 3/4, 1; tau = 1/4
    raw = np.array([0.1, 1.0, 1 + 1 / 3, 1 + 2 / 3, 2.0])
    np.testing.assert_allclose(reshape_importance(importance), raw * 5 / raw.sum(), rtol=1e-6)


def test_more_importance_never_less_weight() -> None:
    importance = np.random.default_rng(0).exponential(size=50)
    found = reshape_importance(importance)
    assert (np.diff(found[np.argsort(importance)]) >= 0).all()


@pytest.mark.parametrize("importance", [[], [3.0], [0.0, 0.0], [2.5] * 7])
def test_nothing_to_tell_apart(importance: list[float]) -> None:
    found = reshape_importance(np.array(importance))
    assert found.dtype == np.float32
    assert found.tolist() == [1.0] * len(importance)
