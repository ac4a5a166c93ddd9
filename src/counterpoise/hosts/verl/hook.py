"""Run a callback right after a module is imported, without importing it ourselves."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportHook(MetaPathFinder):
    """Removes itself when the module is imported, and wraps the loader that is found."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self.name, self.callback = name, callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        # Removed first, so that the search below asks the other finders and not this one again.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        exec_module = spec.loader.exec_module

        def exec_and_call(module: ModuleType) -> None:
            exec_module(module)
            self.callback()

        spec.loader.exec_module = exec_and_call  # type: ignore[method-assign]
        return spec


def call_after_import(name: str, callback: Callable[[], None]) -> None:
    """Call `callback` once module `name` is imported; now, if it already is.

    Example:
        call_after_import("verl.trainer.ppo.v1", install_trainers)
    """
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, ImportHook(name, callback))
