"""What users' functions log, as values that JSON can hold.

This is a module of its own because rollout_lines.py imports pyarrow: the process that runs reward
functions needs only this one, and starts in half the time without pyarrow.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def to_plain_value(value: Any) -> Any:
    """A value that a user's function logged; what JSON cannot hold becomes its text."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return _describe(value)
    return value


def _describe(value: Any) -> str:
    try:
        return str(value)
    except RecursionError:  # nested too deeply even for its text
        return f"a {type(value).__name__} that is nested too deeply"
