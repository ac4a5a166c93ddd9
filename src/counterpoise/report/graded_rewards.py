"""Whether rewards other than 0 and 1 occurred: then the mean reward is the headline, not success.

Logs of other trainers and of older versions do not record it. Rewards of 0 and 1 alone have the
success as their mean, so a mean reward that differs from the success tells that they are graded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from counterpoise.store.evaluation_records import differs_from_success, is_graded_evaluation


def has_graded_rewards(
    metrics: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]
) -> bool:
    """Whether any line of metrics.jsonl or evaluations.jsonl has graded rewards."""
    return any(map(is_graded_iteration, metrics)) or any(map(is_graded_evaluation, evaluations))


def is_graded_iteration(record: Mapping[str, Any]) -> bool:
    """Whether a line of metrics.jsonl has graded rewards.

    Example:
        >>> is_graded_iteration({"reward": 0.25, "success": 0.5})
        True
        >>> is_graded_iteration({"success": 0.5})
        False
    """
    reward, success = record.get("reward"), record.get("success")
    if record.get("graded"):
        return True
    return reward is not None and success is not None and differs_from_success(reward, success)
