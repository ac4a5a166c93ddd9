"""Several rewards, one advantage: against the formulas written out, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from counterpoise.config import CreditConfig, RunConfig, VerifyConfig
from counterpoise.credit.assign import assign_advantages
from counterpoise.credit.reward_mixtures import RewardMixture, configured_mixture
from counterpoise.errors import PoiseError
from counterpoise.types import Group, Rollout


def group(rewards: list[float], **others: list[float]) -> Group:
    tokens = np.arange(3, dtype=np.int32)
    return Group(
        "1:p",
        1,
        tuple(
            Rollout(
                "p", "?", "1", "", reward, tokens[:1], tokens, np.zeros(3, np.float32),
                extra_rewards={name: values[i] for name, values in others.items()},
            )
            for i, reward in enumerate(rewards)
        ),
    )  # fmt: skip


def z_scores(values: list[float]) -> list[float]:
    """CRPO's GN, one number at a time."""
    mean = sum(values) / len(values)
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return [(v - mean) / (std + 1e-6) if std else 0.0 for v in values]


def advantages(made: Group, mixture: RewardMixture, credit: str = "grpo") -> list[float]:
    return [row.advantage for row in assign_advantages([made], credit, mixture)[0]]


def test_decoupled_is_the_average_of_z_scores() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rewards = rng.integers(0, 2, 8).astype(float).tolist()
        style, length = rng.normal(5, 100, 8).tolist(), rng.random(8).tolist()
        made = group(rewards, style=style, length=length)
        expected = [
            (a + 0.5 * b + 2 * c) / 3.5
            for a, b, c in zip(z_scores(rewards), z_scores(style), z_scores(length), strict=True)
        ]
        found = advantages(made, RewardMixture("decoupled", {"style": 0.5, "length": 2.0}))
        assert found == pytest.approx(expected, abs=1e-9)
        assert sum(found) == pytest.approx(0, abs=1e-9)


def test_crpo_is_one_further_reward_with_the_weight_1() -> None:
    made = group([1, 0, 1, 0], style=[3, 3, 1, 1])
    s = math.sqrt(3) / 2  # both are half and half
    found = advantages(made, RewardMixture("decoupled", {"style": 1.0}))
    assert found == pytest.approx([s, 0, 0, -s], 1e-5)
    assert found[1:3] == [0.0, 0.0]  # right without style, style without right: no signal at all


def test_scale_and_offset_of_a_reward_drop_out() -> None:
    small, large = [0.1, 0.4, 0.2, 0.9], [1001.0, 1004.0, 1002.0, 1009.0]
    mixture = RewardMixture("decoupled", {"style": 1.0})
    found = [advantages(group([1, 0, 0, 1], style=style), mixture) for style in (small, large)]
    assert found[0] == pytest.approx(found[1], abs=1e-4)  # up to the epsilon beside the std


def test_a_reward_without_spread_leaves_the_others_their_part() -> None:
    mixture = RewardMixture("decoupled", {"style": 1.0})
    found = advantages(group([1, 1, 1, 1], style=[0, 0, 1, 1]), mixture)
    assert found == pytest.approx([v / 2 for v in z_scores([0, 0, 1, 1])])
    assert advantages(group([1, 1], style=[2, 2]), mixture) == [0.0, 0.0]
    assert advantages(group([1], style=[2]), mixture) == [0.0]  # a group of one


def test_any_credit_can_be_decoupled() -> None:
    made = group([1, 0, 0], style=[0, 0, 3])
    found = advantages(made, RewardMixture("decoupled", {"style": 3.0}), "dr_grpo")
    assert found == pytest.approx([(2 / 3 - 3) / 4, (-1 / 3 - 3) / 4, (-1 / 3 + 6) / 4])


def test_summed_rewards_are_added_before_the_advantage_is_taken() -> None:
    made = group([1, 1, 0, 0], overlong=[0, -1, 0, -0.5])
    found = advantages(made, RewardMixture("sum", {"overlong": 0.5}))
    assert found == pytest.approx(z_scores([1, 0.5, 0, -0.25]))


def test_rewards_that_cancel_in_a_sum_leave_no_signal() -> None:
    made = group([0.3, 0, 0.6], style=[-0.1, 0, -0.2])  # 0.3 - 3 * 0.1 is -5.6e-17 in float64
    assert advantages(made, RewardMixture("sum", {"style": 3.0})) == [0, 0, 0]


def test_shaping_separates_a_group_that_is_all_right() -> None:
    found = advantages(
        group([1, 1, 1], overlong=[0, 0, -1]), RewardMixture("sum", {"overlong": 1.0})
    )
    assert found[0] == found[1] > 0 > found[2]


def test_without_further_rewards_the_verifiers_is_left_as_it_is() -> None:
    made = group([1, 0, 0, 1])
    plain = [row.advantage for row in assign_advantages([made], "grpo")[0]]
    assert advantages(made, RewardMixture("decoupled")) == plain


def test_a_group_without_the_reward_says_so() -> None:
    with pytest.raises(PoiseError, match="has no reward 'style'"):
        advantages(group([1, 0]), RewardMixture("sum", {"style": 1.0}))


def test_the_run_file_says_it_all() -> None:
    config = RunConfig(
        verify=VerifyConfig(also=["overlong", "equations=0.5"]),
        credit=CreditConfig(mixture="decoupled"),
    )
    made = configured_mixture(config)
    assert (made.name, made.weights) == ("decoupled", {"overlong": 1.0, "equations": 0.5})
    assert configured_mixture(RunConfig()) == RewardMixture()
