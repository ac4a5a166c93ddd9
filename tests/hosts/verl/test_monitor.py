"""Where the tokens of an update went, from log-probabilities before and after."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.hosts.verl.monitor import displacement_shares


def test_shares_by_sign() -> None:
    before = [np.array([-1.0, -2.0, -3.0]), np.array([-1.0, -1.0]), np.array([-5.0])]
    after = [np.array([-0.5, -2.0, -3.5]), np.array([-0.8, -1.4]), np.array([-9.0])]
    advantages = [np.full(3, 0.7), np.full(2, -0.7), np.zeros(1)]
    result = displacement_shares(before, after, advantages)
    third = pytest.approx(1 / 3)
    assert result["boosted_positive"] == result["suppressed_positive"] == third
    assert result["stable_positive"] == third
    assert result["moved_positive"] == third
    assert (result["boosted_negative"], result["suppressed_negative"]) == (0.5, 0.5)
    assert result["moved_negative"] == pytest.approx(0.3)
    assert result["flipped"] == 2 / 5  # one of three and one of two; a row without signal has none


def test_an_update_of_nothing_moves_nothing() -> None:
    same = [np.linspace(-3, 0, 7, dtype=np.float32)]
    result = displacement_shares(same, same, [np.ones(7, dtype=np.float32)])
    assert result == {
        "boosted_positive": 0.0, "suppressed_positive": 0.0, "stable_positive": 1.0,
        "moved_positive": 0.0, "flipped": 0.0,
    }  # fmt: skip
    assert displacement_shares(same, same, [np.zeros(7, dtype=np.float32)]) == {}
