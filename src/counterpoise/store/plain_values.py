"""Values that JSON can hold, and texts that UTF-8 can hold.

This is a module of its own because rollout_lines.py imports pyarrow: the process that runs reward
functions needs only this one, and starts in half the time without pyarrow.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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


def plain_text(value: object) -> str:
    """A text that UTF-8 can hold: halves of surrogate pairs are replaced.

    Example:
        >>> plain_text("a\\ud800")
        'a�'
    """
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # rare, and looking for them beforehand would take longer
        return LONE_SURROGATE.sub("\ufffd", text)
    return text
