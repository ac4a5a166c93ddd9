"""W-REINFORCE: a tenth for what worked, minus one for what did not, whatever the group."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.errors import PoiseError
from counterpoise.runfile import load_config
from counterpoise.variants import ADVANTAGES

advantages = ADVANTAGES.load("w_reinforce")


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 1], [0.1, -1, -1, 0.1]),
        ([1, -1], [0.1, -1]),
        ([0.5, 0.0], [0.1, -1]),  # part of a reward is right
        ([0, 0, 0], [-1, -1, -1]),  # all wrong: the signal stays
        ([1, 1], [0.1, 0.1]),
        ([0], [-1]),
    ],
)
def test_by_hand(rewards: list[float], expected: list[float]) -> None:
    found = advantages(np.array(rewards, dtype=np.float64))
    assert found.dtype == np.float64
    assert found.tolist() == expected


def test_it_is_the_two_losses_by_loops() -> None:
    """L = 0.1 L_PSR + L_NSR; L_PSR = -sum of log pi over right rollouts, L_NSR = + over wrong."""
    rng = np.random.default_rng(0)
    rewards, logprobs = rng.integers(0, 2, 16).astype(float), rng.normal(size=16)
    psr = -sum(lp for r, lp in zip(rewards, logprobs, strict=True) if r == 1)
    nsr = sum(lp for r, lp in zip(rewards, logprobs, strict=True) if r == 0)
    assert -(advantages(rewards) * logprobs).sum() == pytest.approx(0.1 * psr + nsr)


def test_it_is_not_made_to_sum_to_zero() -> None:
    chosen = ["credit.name=w_reinforce", "balance.tau=0.25"]
    with pytest.raises(PoiseError, match=r"set balance\.unit=group"):
        load_config("demo", [*chosen, "balance.unit=rollout"])
    assert load_config("demo", [*chosen, "balance.unit=group"]).credit.name == "w_reinforce"
