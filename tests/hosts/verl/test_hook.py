"""A call right after somebody else's import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from counterpoise.hosts.verl.hook import call_after_import


def test_it_is_called_once_and_after_the_module_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hooked_package").mkdir()
    (tmp_path / "hooked_package" / "__init__.py").write_text("from .inner import PLACES\n")
    (tmp_path / "hooked_package" / "inner.py").write_text("PLACES = {'a': 1}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders, calls = list(sys.meta_path), []

    def then() -> None:
        from hooked_package import PLACES

        PLACES["a"] += 1
        calls.append(dict(PLACES))

    call_after_import("hooked_package", then)
    assert calls == []
    package = importlib.import_module("hooked_package.inner")  # the package comes first
    assert calls == [{"a": 2}]
    assert package.PLACES == {"a": 2}
    assert sys.meta_path == finders
    importlib.reload(sys.modules["hooked_package"])
    assert len(calls) == 1
    call_after_import("hooked_package", then)  # it is there already
    assert calls[1:] == [{"a": 3}]


def test_a_module_that_does_not_exist_stays_missing() -> None:
    finders = list(sys.meta_path)
    call_after_import("no_such_package_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package_at_all")
    assert sys.meta_path == finders
