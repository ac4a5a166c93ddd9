"""What holds of the source as a whole: no circles, a tree that is true, documents that are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from typer.main import get_command

from counterpoise.cli import app
from counterpoise.runfile import options

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "counterpoise"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ONE_LINE_FOR_ALL = ("cli", "adapters", "kernels")  # folders whose files the tree does not name


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """Names that are imported anywhere in a file, those for the type checker apart."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imported(node)


def test_no_module_imports_another_in_a_circle():
    files = {module_of(path): path for path in SOURCE.rglob("*.py")}
    needs: dict[str, set[str]] = {}
    for module, path in files.items():
        names = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
        wanted = {name if name in files else name.rpartition(".")[0] for name in names}
        needs[module] = wanted & files.keys() - {module}
    assert needs["counterpoise.cli.look"] == {"counterpoise.look", "counterpoise.look_view"}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as fault:
        pytest.fail(" -> ".join(fault.args[1]))


def test_files_and_functions_are_read_in_one_sitting():
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 350, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, functions) and node.end_lineno:
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_the_tree_of_the_readme_names_every_file():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text[text.index("    src/counterpoise/\n") :]
    parts = re.split(r"^      (\w+)/ ", tree, flags=re.MULTILINE)  # files beside folders, folders
    said = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    missing = []
    for path in sorted(SOURCE.rglob("*.py")):
        *folders, name = path.relative_to(SOURCE).parts
        if name.startswith("__") or any(folder in ONE_LINE_FOR_ALL for folder in folders):
            continue
        named = re.findall(r"[\w*]+\.py", said.get(folders[0], "") if folders else tree)
        if not any(Path(name).match(pattern) for pattern in named):
            missing.append("/".join((*folders, name)))
    assert not missing


def places(page: Path) -> set[str]:
    """The names by which a page's headings are linked to."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_links_of_the_documents(page: Path):
    commands = get_command(app).commands  # type: ignore[attr-defined]
    known = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in commands.items()
    }
    text = page.read_text(encoding="utf-8")
    for name, words in re.findall(r"\bpoise ([a-z][a-z-]*)\b([^`#|\n]*)", text):
        if name in known:
            assert set(re.findall(r"(?<!\S)\[?(--[a-z-]+)", words)) <= known[name] | {"--help"}
    for link, place in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
        if not link.startswith("http"):
            target = page.parent / link if link else page
            assert target.exists(), link
            assert not place or place in places(target), f"{link}#{place}"
    if page.name == "configuration.md":
        assert set(re.findall(r"^\| `poise ([a-z-]+)", text, re.MULTILINE)) == set(known)


def test_the_table_of_options_is_what_poise_options_prints():
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    written = re.findall(r"^\| `([a-z]+\.\w+)` \| `(.*?)` \| (.*) \|$", text, re.MULTILINE)
    assert sorted(written) == sorted(options())
