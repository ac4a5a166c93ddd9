"""MaxRL: the gradient of log p, by its definition and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.variants import ADVANTAGES

advantages = ADVANTAGES.load("maxrl")


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0], [3, -1, -1, -1]),
        ([1, 1, 1, 0], [1 / 3, 1 / 3, 1 / 3, -1]),
        ([0.5, 0.25], [1 / 3, -1 / 3]),
        ([0, 0, 0], [0, 0, 0]),
        ([1, 1], [0, 0]),
        ([1], [0]),
    ],
)
def test_by_hand(rewards: list[float], expected: list[float]) -> None:
    values = advantages(np.array(rewards, dtype=np.float64))
    assert values.dtype == np.float64
    assert values.tolist() == pytest.approx(expected, abs=1e-15)


def test_it_is_the_estimator_of_the_log_likelihood_by_loops() -> None:
    """The paper's estimator: the mean score of the K right rollouts minus that of all G."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        rewards, scores = rng.integers(0, 2, 9).astype(float), rng.normal(size=9)
        num_right = int(rewards.sum())
        estimate = 0.0
        if num_right > 0:
            right_scores = [s for r, s in zip(rewards, scores, strict=True) if r == 1]
            estimate = math.fsum(right_scores) / num_right - math.fsum(scores) / 9
        assert (advantages(rewards) * scores).mean() == pytest.approx(estimate, abs=1e-12)


def test_negative_rewards_are_refused() -> None:
    with pytest.raises(PoiseError, match=r"rewards of 0 or above, not -1: choose"):
        advantages(np.array([1.0, -1.0]))
    with pytest.raises(PoiseError, match=r"maxrl needs rewards of 0 or above, and overlong"):
        load_config("demo", ["credit.name=maxrl", 'verify.also=["overlong=0.5"]'])
    with pytest.raises(PoiseError, match=r"and update\.kl_in=reward lowers them"):
        load_config("demo", ["credit.name=maxrl", "update.kl=0.1", "update.kl_in=reward"])
    assert load_config("demo", ["credit.name=maxrl"]).credit.name == "maxrl"
