"""JSON of an answer, and the faults that an address can have."""

from __future__ import annotations

import json
from typing import Any

from counterpoise.report.charts.render import nan_to_none

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
        text = json.dumps(nan_to_none(value), separators=(",", ":"))
    return text.replace("\x7f", "\\u007f").encode("ascii")
