"""Name -> the one function that carries it, imported when first asked for.

A variant (a composer, an advantage, a surrogate, a panel) is one file and one line in its
stage's table. Tables hold strings, so listing the names costs no heavy import. A table may also
take functions that stand in no table: the user's own, by FILE.py:FUNCTION (plugins.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from counterpoise.errors import unknown
from counterpoise.plugins import OWN, is_own


class Registry(Mapping[str, str]):
    """A read-only table of `"package.module:attribute"` strings.

    `own` names, in the same way, what makes an entry of a user's function: (its name) -> what
    `load` returns. Without it the table takes none.

    Example:
        >>> table = Registry("square root", {"real": "math:sqrt", "complex": "cmath:sqrt"})
        >>> table.load("real")(9.0)
        3.0
    """

    def __init__(self, kind: str, entries: Mapping[str, str], own: str = "") -> None:
        self.kind = kind
        self.own = own
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def choices(self) -> tuple[str, ...]:
        """What an option that names an entry may be."""
        return (*self._entries, OWN) if self.own else tuple(self._entries)

    def load(self, name: str) -> Callable[..., Any]:
        """The function registered under `name`; an unknown name says which one is nearest."""
        if name in self._entries:
            return _imported(self._entries[name])
        if self.own and is_own(name):
            made: Callable[..., Any] = _imported(self.own)(name)
            return made
        raise unknown(self.kind, name, self.choices)


def _imported(entry: str) -> Callable[..., Any]:
    module, _, attribute = entry.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), attribute)
    return loaded
