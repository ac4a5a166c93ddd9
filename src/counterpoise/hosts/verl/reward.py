"""The run's verifier as verl's reward function: one response, one reward.

verl calls it from threads of several reward processes. Each process has one verifier, with one
worker and the run's time limits. A function of the user's that exceeds its limit gives a reward of
0, and a line says so: verl needs a number.
"""

from __future__ import annotations

import json
import math
import threading
from functools import cache
from typing import Any

from counterpoise.config import VerifyConfig
from counterpoise.errors import PoiseError
from counterpoise.plugins import display_name, is_plugin
from counterpoise.store.turns import messages_from_record
from counterpoise.terminal import echo_message
from counterpoise.types import Prompt
from counterpoise.verify.make_verifier import make_verifier
from counterpoise.verify.scores import ScoringContext, Verifier, score_responses
from counterpoise.verify.time_limited_verifier import count_lost_as_wrong

_verifier_lock = threading.Lock()  # a verifier takes one call at a time


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,
    *,
    verifier: str = "math",
    timeout_seconds: float = 5.0,
    reward_timeout_seconds: float = 600.0,
    **_: Any,
) -> float:
    """The reward of a response; the parameters are verl's, `extra_info` is ours (run.py)."""
    info = extra_info or {}
    columns = json.loads(info.get("columns") or "{}")
    messages = messages_from_record({"messages": json.loads(info.get("messages") or "[]")})
    prompt = Prompt(
        str(info.get("id")),
        info.get("problem", ""),
        ground_truth,
        columns=columns,
        messages=messages,
    )
    with _verifier_lock:
        scores = score_responses(
            _load_verifier(verifier, timeout_seconds, reward_timeout_seconds),
            [solution_str],
            [prompt],
            ScoringContext(data_source=data_source),
        )
    (reward,) = count_lost_as_wrong(scores)
    if is_plugin(verifier) and (scores.timeouts or scores.crashes):
        failure = "ended its process" if scores.crashes else "took too long"
        echo_message(f"poise: {display_name(verifier)} {failure} for {prompt.id}: its reward is 0")
    if math.isnan(reward):
        raise PoiseError(
            f"{display_name(verifier)} returned None, and verl needs a reward for each response: "
            "return a number, or train with --engine native or trl"
        )
    return reward


@cache
def _load_verifier(name: str, timeout_seconds: float, reward_timeout_seconds: float) -> Verifier:
    return make_verifier(VerifyConfig(name, timeout_seconds, reward_timeout_seconds, workers=1))
