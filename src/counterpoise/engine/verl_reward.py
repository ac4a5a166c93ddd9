"""The run's verifier as verl's reward function: one response, one reward.

verl calls it in threads of several reward processes; each process has one verifier, with one worker
and the run's time limit for an answer.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from counterpoise.verify import VERIFIERS
from counterpoise.verify.scores import Verifier

_turn = threading.Lock()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,
    *,
    verifier: str = "math",
    timeout_seconds: float = 5.0,
    **_: Any,
) -> float:
    """verl's names for: task, response, answer."""
    with _turn:
        (reward,) = (
            _verifier(verifier, timeout_seconds).score([solution_str], [ground_truth]).rewards
        )
    return reward


@cache
def _verifier(name: str, timeout_seconds: float) -> Verifier:
    found: Verifier = VERIFIERS.load(name)(timeout_seconds, 1)
    return found
