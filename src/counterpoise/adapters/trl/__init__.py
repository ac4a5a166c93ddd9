"""`counterpoise.trl` under its name of version 0.1."""

from __future__ import annotations

from typing import Any

from counterpoise.adapters import point_to
from counterpoise.hosts import trl

point_to("counterpoise.adapters.trl", "counterpoise.trl")


def __getattr__(name: str) -> Any:
    return getattr(trl, name)
