"""A field of a section that carries its own documentation and its own limits."""

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
    """`doc` is what `--help` and config.toml say of it."""
    meta = {"doc": doc, "choices": tuple(choices), "at_least": at_least, "at_most": at_most}
    meta["may_be_empty"] = default == []  # a list that has a first entry by default keeps one
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=meta)
    return field(default=default, metadata=meta)
