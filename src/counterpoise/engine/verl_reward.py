"""The run's verifier as verl's reward function: one response, one reward.

verl calls it in threads of several reward processes; each process has one verifier, with one worker
and the run's time limit for an answer.
"""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import Any

from counterpoise.types import Prompt
from counterpoise.variants import VERIFIERS
from counterpoise.verify.scores import Verifier, verified

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
    """verl's names for: task, response, answer, and what our data files add (verl_run.py)."""
    more = extra_info or {}
    columns = json.loads(more.get("columns") or "{}")
    prompt = Prompt(str(more.get("id")), more.get("problem", ""), ground_truth, columns=columns)
    with _turn:
        (reward,) = verified(_verifier(verifier, timeout_seconds), [solution_str], [prompt]).rewards
    return reward


@cache
def _verifier(name: str, timeout_seconds: float) -> Verifier:
    found: Verifier = VERIFIERS.load(name)(timeout_seconds, 1)
    return found
