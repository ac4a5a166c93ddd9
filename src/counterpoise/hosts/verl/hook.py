"""Do something right after a module was imported, without importing it oneself."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class WhenImported(MetaPathFinder):
    """Steps aside as soon as the module is asked for, and wraps the loader that is found."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)  # the others find it
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        plain = spec.loader.exec_module

        def run(module: ModuleType) -> None:
            plain(module)
            self.then()

        spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` once module `name` is imported: now, if it is.

    Example:
        when_imported("verl.trainer.ppo.v1", take_places)
    """
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, WhenImported(name, then))
