"""JSON of an answer, and the faults that an address can have."""

from __future__ import annotations

import json
import math
from typing import Any

JSON_TYPE = "application/json"


class NotFoundError(Exception):
    """The address names something that is not there: status 404."""


class BadRequestError(Exception):
    """A parameter of the address cannot be understood: status 400."""


def encode_answer(value: Any) -> bytes:
    """JSON in ASCII: NaN and infinities become null, and no character can act on a terminal.

    Example:
        >>> encode_answer({"text": "\\x1b[2J", "loss": float("nan")})
        b'{"text":"\\\\u001b[2J","loss":null}'
    """
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    # NaN is rare, and looking for it in every value is slow.
    except ValueError:
        text = json.dumps(without_nan(value), separators=(",", ":"))
    return text.replace("\x7f", "\\u007f").encode("ascii")


def without_nan(value: Any) -> Any:
    """The value with None for every number that JSON cannot express."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value
