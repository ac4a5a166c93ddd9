"""Name -> the one function that carries it, imported when first asked for.

A variant (a composer, an advantage, a surrogate, a panel) is one file and one line in its
stage's table. Tables hold strings, so listing the names costs no heavy import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from counterpoise.errors import unknown


class Registry(Mapping[str, str]):
    """A read-only table of `"package.module:attribute"` strings.

    Example:
        >>> table = Registry("square root", {"real": "math:sqrt", "complex": "cmath:sqrt"})
        >>> table.load("real")(9.0)
        3.0
    """

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> Callable[..., Any]:
        """The function registered under `name`; an unknown name says which one is nearest."""
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        module, _, attribute = self._entries[name].partition(":")
        loaded: Callable[..., Any] = getattr(import_module(module), attribute)
        return loaded
