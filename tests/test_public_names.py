"""Names that people script against: `counterpoise`, the short paths, and those of version 0.1."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import counterpoise as poise
from counterpoise.variants import ADVANTAGES


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


def test_importing_the_package_imports_nothing_else():
    code = (
        "import sys, counterpoise; "
        "ours = [name for name in sys.modules if name.startswith('counterpoise')]; "
        "assert ours == ['counterpoise'], ours; assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_torch_is_imported_only_for_what_needs_it():
    code = """
import sys
import counterpoise as poise
advantages_R = poise.advantages([1.0, 0.0], groups=2)
rows = [poise.Row("g", A, 9) for A in advantages_R.tolist()]
buffer = poise.RewardBalancedBuffer(tau=0.5, target=2)
buffer.add([rows])
batch = buffer.take(0)
plan = poise.compose("grouped", batch.rows, num_steps=1, seed=0)
assert poise.describe(batch.rows, plan)["split_groups"] == 0
import counterpoise.hosts.choose_engine
assert "torch" not in sys.modules
poise.weights
assert "torch" in sys.modules
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_every_public_name_resolves_and_an_unknown_one_does_not():
    assert sorted(poise.__all__) == sorted(poise.PUBLIC_NAMES)
    assert set(poise.__all__) <= set(dir(poise))
    for name, entry in poise.PUBLIC_NAMES.items():
        module, _, attribute = entry.partition(":")
        assert getattr(poise, name) is getattr(import_module(module), attribute)
    with pytest.raises(AttributeError, match="module 'counterpoise' has no attribute 'composse'"):
        _ = poise.composse  # type: ignore[attr-defined]
    assert poise.__version__


def test_every_advantage_has_a_public_name():
    for name, entry in ADVANTAGES.items():
        assert poise.PUBLIC_NAMES[name] == entry


def test_type_checkers_see_what_runs():
    """The imports of the TYPE_CHECKING block are the table of names."""
    tree = ast.parse(Path(poise.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imported = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == poise.PUBLIC_NAMES


@pytest.mark.parametrize("name", poise.__all__)
def test_the_example_of_a_docstring_is_true(name: str):
    public = getattr(poise, name)
    module = sys.modules[public.__module__]
    examples = doctest.DocTestFinder(recurse=False).find(public, name, globs=vars(module).copy())
    runner = doctest.DocTestRunner()
    for example in examples:
        runner.run(example, clear_globs=False)
    if inspect.isfunction(public):
        assert runner.tries >= 1, f"{name} has no example"
    assert runner.failures == 0
