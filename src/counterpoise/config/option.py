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
    metadata = {"doc": doc, "choices": tuple(choices), "at_least": at_least, "at_most": at_most}
    # A list that is not empty by default must not be emptied.
    metadata["may_be_empty"] = default == []
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)
