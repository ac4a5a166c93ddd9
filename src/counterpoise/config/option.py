"""The declaration of one option: a dataclass field with its documentation and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any


def option(
    default: Any,
    doc: str,
    *,
    choices: Sequence[str] = (),
    at_least: float | None = None,
    at_most: float | None = None,
) -> Any:
    """Declare an option with its default, its help text `doc` and its limits."""
    meta = {"doc": doc, "choices": tuple(choices), "at_least": at_least, "at_most": at_most}
    meta["may_be_empty"] = default == []  # a list that is not empty by default must not be emptied
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=meta)
    return field(default=default, metadata=meta)
