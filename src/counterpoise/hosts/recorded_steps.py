"""The records of a step that another trainer took, with NaN or null for what it does not tell.

Our own update reports all of a step (update/step.py). Another trainer's step is seen from outside:
which rows it trained and with which advantages, and some of what its loss computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterpoise.types import Floats, StepResult


def observed_step(
    rows: Sequence[int],
    *,
    advantages: Sequence[Floats],
    logprobs: Sequence[Floats],
    old_logprobs: Sequence[Floats],
    tokens: int,
    **known_fields: Any,
) -> StepResult:
    """A step as `update/step.py` reports one; numbers that are not among `known_fields` are NaN.

    Example:
        observed_step((0, 3), advantages=[...], logprobs=[...], old_logprobs=[...], tokens=57,
                      learning_rate=1e-6)
    """
    unknown_RT = [np.full(len(advantages_T), np.nan, np.float32) for advantages_T in advantages]
    fields: dict[str, Any] = {
        "rows": tuple(rows),
        "advantages": advantages,
        "logprobs": logprobs,
        "old_logprobs": old_logprobs,
        "entropies": unknown_RT,
        "pulls": unknown_RT,
        "coefficients": np.full(len(rows), np.nan, np.float32),
        "loss": float("nan"),
        "grad_norm": float("nan"),
        "clipped_share": float("nan"),
        "tokens": tokens,
        "skipped": "" if rows else "no signal",
    }
    return StepResult(**(fields | known_fields))


def observed_metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl without the numbers that are only known inside the trainer."""
    known = {
        name: None if isinstance(value, float) and np.isnan(value) else value
        for name, value in line.items()
    }
    # What happens inside the trainer's reward function is not seen.
    known |= {"verifier_timeouts": None, "verifier_crashes": None}
    # Its tools and environments do not say which turn was right.
    return known | ({"turn_success": None} if "turn_success" in known else {})
