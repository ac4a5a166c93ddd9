"""F-GRPO: GRPO's advantage times one minus the success rate."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from counterpoise.variants import ADVANTAGES

advantages = ADVANTAGES.load("f_grpo")


def by_definition(rewards: list[float]) -> list[float]:
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    failure_rate = sum(r <= 0 for r in rewards) / len(rewards)
    return [failure_rate * (r - mean) / (std + 1e-6) for r in rewards]


@pytest.mark.parametrize(
    "rewards", [[1, 0, 0, 0], [1, 1, 1, 0], [1, -1, -1], [0.0, 0.3, 0.3, 0.9, 0.0]]
)
def test_by_definition(rewards: list[float]) -> None:
    values = advantages(np.array(rewards, dtype=np.float64))
    assert values.tolist() == pytest.approx(by_definition(rewards), abs=1e-14)
    assert values.sum() == pytest.approx(0, abs=1e-14)


def test_easy_prompts_count_less_and_uniform_groups_nothing() -> None:
    hard, easy = (advantages(np.array(r, float)) for r in ([1, 0, 0, 0], [1, 1, 1, 0]))
    assert np.abs(hard).sum() == pytest.approx(3 * np.abs(easy).sum())
    for rewards in ([0.0, 0.0], [1.0, 1.0], [1.0]):
        assert advantages(np.array(rewards)).tolist() == [0.0] * len(rewards)
