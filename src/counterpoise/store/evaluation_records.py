"""Success and mean reward of a line of evaluations.jsonl or benchmarks.jsonl, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from counterpoise.statistics.prompt_intervals import IntervalEstimate

# Older versions summed rewards in another order: equal means may differ by rounding.
ROUNDING = 1e-9


def success_estimate(record: Mapping[str, Any]) -> IntervalEstimate:
    """The success, which every line has."""
    return IntervalEstimate(*(float(record[name]) for name in ("mean", "low", "high")))


def reward_estimate(record: Mapping[str, Any]) -> IntervalEstimate:
    """The mean reward; the success where all rewards are 0 or 1.

    The bounds are infinite where the interval is not known. That happens with graded rewards only:
    for a single problem, whose line has null bounds, or in older versions the mean as both bounds;
    and in lines of the oldest versions, which stored no bounds of the reward.

    Example:
        >>> scores = {"mean": 0.5, "low": 0.4, "high": 0.6, "reward": 0.25}
        >>> reward_estimate(scores | {"reward_low": 0.1, "reward_high": 0.4}).low
        0.1
        >>> reward_estimate(scores).low, reward_estimate(scores | {"reward": 0.5}).low
        (-inf, 0.4)
    """
    reward, low, high = (record.get(name) for name in ("reward", "reward_low", "reward_high"))
    if reward is None:
        return success_estimate(record)
    if low is not None and high is not None and record.get("prompts") != 1:
        return IntervalEstimate(float(reward), float(low), float(high))
    if is_graded_evaluation(record) or differs_from_success(float(reward), float(record["mean"])):
        return IntervalEstimate(float(reward), -math.inf, math.inf)
    return success_estimate(record)


def is_graded_evaluation(record: Mapping[str, Any]) -> bool:
    """Whether rewards are graded: only then a line has an interval of them, null if not known."""
    return "reward_low" in record


def differs_from_success(reward: float, success: float) -> bool:
    """Whether a mean reward is not just the success: then some reward is neither 0 nor 1."""
    return not math.isclose(reward, success, abs_tol=ROUNDING)
