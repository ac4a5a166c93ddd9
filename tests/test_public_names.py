"""Import paths that people script against: the short ones, and those of version 0.1."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_old_path_of_the_trl_adapter_works_and_names_the_new_one():
    code = (
        "import counterpoise.adapters.trl as old; from counterpoise.hosts import trl as new; "
        "assert old.require_trl is new.require_trl"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert "counterpoise.adapters.trl is now counterpoise.trl" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_short_names_import_no_engine():
    result = run_python("import counterpoise.trl, sys; assert 'trl' not in sys.modules")
    assert result.returncode == 0, result.stderr


def test_the_trl_classes_by_both_names():
    pytest.importorskip("trl")
    import counterpoise.adapters.trl
    import counterpoise.trl
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

    assert counterpoise.adapters.trl.PoiseGRPOTrainer is PoiseGRPOTrainer
    assert counterpoise.trl.PoiseGRPOTrainer is PoiseGRPOTrainer


def test_the_verl_plugin_by_all_names():
    pytest.importorskip("verl")
    import counterpoise.verl
    from counterpoise.adapters.verl import plugin as old_name
    from counterpoise.hosts.verl import plugin

    assert counterpoise.verl.plugin is plugin
    assert old_name.plugin is plugin
