"""What holds of the source as a whole: no circles, short files, a tree that is true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "counterpoise"
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def functions_and_calls(path: Path) -> tuple[list[FunctionNode], list[ast.Call]]:
    """Those of a whole file, in one walk over its nodes."""
    nodes = list(ast.walk(syntax_tree(path)))
    functions = [node for node in nodes if isinstance(node, FunctionNode)]
    return functions, [node for node in nodes if isinstance(node, ast.Call)]


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """A million nodes would slow down every garbage collection of the tests that follow."""
    yield
    syntax_tree.cache_clear()
    functions_and_calls.cache_clear()


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, *, count_type_checking: bool = False) -> Iterator[str]:
    """Names that are imported anywhere in a file; those for the type checker only if counted."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue  # nine of ten nodes, and none of them imports
        is_for_checker = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if is_for_checker and not count_type_checking:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imported(node, count_type_checking=count_type_checking)


def test_no_module_imports_another_in_a_circle():
    files = {module_of(path): path for path in SOURCE.rglob("*.py")}
    needs: dict[str, set[str]] = {}
    for module, path in files.items():
        names = set(imported(syntax_tree(path)))
        wanted = {name if name in files else name.rpartition(".")[0] for name in names}
        needs[module] = wanted & files.keys() - {module}
    assert needs["counterpoise.cli.look"] == {
        "counterpoise.cli.token_view", "counterpoise.cli.token_view_text", "counterpoise.errors",
        "counterpoise.terminal",
    }  # fmt: skip
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as fault:
        pytest.fail(" -> ".join(fault.args[1]))


# A file may import from its own room and from rooms before it. Read from left to right: the ground;
# what stages are made of; the stages, of which `verify` and `task` need nothing of the others; a
# run; its hosts; its readers.
ROOMS = (
    "ground", "config", "statistics", "model", "store",
    "verify", "task", "sample", "credit", "batch", "update", "microscope",
    "run", "loop", "hosts", "report", "serve", "lab", "cli", "public names",
)  # fmt: skip
GROUND = {"errors", "files", "plugins", "seeds", "terminal", "types", "variants"}
PUBLIC_NAMES = {"trl", "verl", "adapters"}
EXCEPTIONS = {
    # (importing module, imported module): reason
}


def room_of(module: str) -> str:
    _, _, path = module.partition(".")
    first = path.split(".")[0]
    if not first or first in GROUND:
        return "ground"
    return "public names" if first in PUBLIC_NAMES else first


def test_imports_go_one_way():
    modules = {module_of(path): path for path in SOURCE.rglob("*.py")}
    against = set()
    for module, path in modules.items():
        # The package's own names stand for all rooms: it imports none of them until one is used,
        # so what only the type checker sees does not count there. Everywhere else it does.
        count_type_checking = module != "counterpoise"
        names = imported(syntax_tree(path), count_type_checking=count_type_checking)
        for name in names:
            imported_module = name if name in modules else name.rpartition(".")[0]
            if imported_module not in modules or (module, imported_module) in EXCEPTIONS:
                continue
            if ROOMS.index(room_of(imported_module)) > ROOMS.index(room_of(module)):
                against.add(f"{module} imports {imported_module}")
    assert not against
    assert len(EXCEPTIONS) <= 3


def test_files_and_functions_are_read_in_one_sitting():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 450, path
        for function in functions_and_calls(path)[0]:
            assert function.end_lineno is not None
            assert function.end_lineno - function.lineno < 80, f"{path}: {function.name}"


def test_the_map_of_the_readme_names_every_room_and_no_other():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    drawn = text[text.index("    src/counterpoise/\n") : text.index("\n    runs/ ")]
    named = set(re.findall(r"(?<![\w/])[a-z]+(?:\.py|/)(?= |:|$)", drawn, flags=re.MULTILINE))
    there = {path.name for path in SOURCE.glob("*.py")} - {"__init__.py"}
    there |= {f"{path.name}/" for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__/"}
    assert named - {"contamination/"} == there


def test_models_are_loaded_without_running_their_code():
    loads = [
        (path, {word.arg: ast.unparse(word.value) for word in call.keywords})
        for path in SOURCE.rglob("*.py")
        for call in functions_and_calls(path)[1]
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "from_pretrained"
        # An adapter is weights and numbers; PEFT runs no code of its folder.
        and ast.unparse(call.func.value) != "peft.PeftModel"
    ]
    assert len(loads) >= 8
    assert not [path for path, given in loads if given.get("trust_remote_code") != "False"]


def test_everything_that_is_printed_goes_through_what_spells_out_controls():
    """The console and messages of terminal.py; the others write to a pipe, or figures of ours."""
    allowed = {
        "terminal.py",
        "verify/math/comparison_worker.py",
        "verify/reward_worker.py",
        "adapters/__init__.py",
    }
    printing = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for call in functions_and_calls(path)[1]
        if ast.unparse(call.func) in {"print", "typer.echo", "Console", "rich.print"}
    }
    assert printing <= allowed
