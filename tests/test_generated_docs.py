"""The generated pages of docs/reference/ are what the code says now."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

import counterpoise

SCRIPT = Path(__file__).parents[1] / "docs" / "generate.py"
specification = importlib.util.spec_from_file_location("generate_docs", SCRIPT)
generate = importlib.util.module_from_spec(specification)
specification.loader.exec_module(generate)


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_generated_page_is_current(name):
    stored = (generate.REFERENCE / name).read_text(encoding="utf-8")
    assert stored == generate.PAGES[name](), "run `make docs` and commit the result"


def test_the_page_of_the_run_folder_has_every_field_of_the_metrics():
    page = generate.run_folder_page()
    assert [name for name in generate.schema.METRICS if f"\n    {name}" not in page] == []


def test_every_module_says_what_it_is():
    silent = [
        path.relative_to(generate.SOURCE).as_posix()
        for path in generate.SOURCE.rglob("*.py")
        if path.name != "__init__.py" and not generate.summary_line(path)
    ]
    assert not silent


def test_the_examples_of_the_script_hold():
    assert doctest.testmod(generate).failed == 0
    assert doctest.testmod(generate).attempted >= 1


def test_the_api_page_has_every_public_name_and_leads_to_every_example():
    page = generate.api_page()
    for name in counterpoise.__all__:
        assert f"`{name}`" in page or f"`poise.{name}`" in page, name
    examples = {path.name for path in (generate.ROOT / "examples").glob("plain_loop_*.py")}
    assert len(examples) == 4
    for name in examples:
        assert f"](../../examples/{name})" in page, name
    source = (generate.ROOT / "examples" / generate.API_EXAMPLE).read_text(encoding="utf-8")
    assert f"```python\n{source}```" in page
    assert page.count("```python") == 1
    assert len(page.split()) < 1300


def test_the_tree_says_what_every_folder_holds():
    page = generate.tree_page()
    sentences = dict(re.findall(r"^- `(\w+)/` (.+)$", page, flags=re.MULTILINE))
    assert sentences["batch"] == "Stage 4, batch: which rows share an optimizer step."
    for folder, sentence in sentences.items():
        assert len(sentence.split()) >= 4, folder
    packages = [path.parent for path in generate.SOURCE.rglob("__init__.py")]
    named_folders = set(re.findall(r"`([\w/]+)/`", page))
    for package in packages:
        parts = package.relative_to(generate.SOURCE).parts
        assert not parts or "/".join(parts[1:] or parts) in named_folders, package
