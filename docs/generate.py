"""Write the pages of docs/reference/ that say what the code says: `make docs`.

    tree.md    every module with the first line of its docstring
    api.md     what `import counterpoise` offers, with the examples that use it

`tests/test_generated_docs.py` fails when a page is no longer what this script would write.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import counterpoise
from counterpoise.variants import ADVANTAGES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "counterpoise"
REFERENCE = ROOT / "docs" / "reference"
NOTICE = "<!-- Written by docs/generate.py (make docs): edit the code, not this page. -->"


def summary_line(path: Path) -> str:
    """The first sentence-like line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def tree_page() -> str:
    """docs/reference/tree.md: folders in the order of their names, files below them."""
    lines = ["# Every module", "", NOTICE, "", "Paths are relative to `src/counterpoise/`.", ""]
    folders = sorted({path.parent for path in SOURCE.rglob("*.py")})
    for folder in folders:
        name = folder.relative_to(SOURCE).as_posix()
        package = folder / "__init__.py"
        title = "The package" if folder == SOURCE else f"`{name}/`"
        lines += [f"## {title}", ""]
        if package.exists() and (about := summary_line(package)):
            lines += [about, ""]
        modules = [p for p in sorted(folder.glob("*.py")) if p.name != "__init__.py"]
        lines += [f"- `{module.name}`: {summary_line(module)}" for module in modules]
        lines += [""] if modules else []
    return "\n".join(lines).rstrip() + "\n"


# -- api.md --------------------------------------------------------------------------------------

API_SECTIONS = {  # title -> (example, names that have an entry of their own)
    "Batches": (
        "plain_loop_batches.py",
        ("Row", "compose", "BatchPlan", "describe", "RewardBalancedBuffer"),
    ),
    "Advantages": ("plain_loop_advantages.py", ("advantages",)),
    "Token weights": ("plain_loop_token_weights.py", ("weights",)),
    "What a step did": ("plain_loop_decompose.py", ("decompose", "Coupling")),
}
API_METHODS = {  # class -> methods and properties that its entry lists
    "RewardBalancedBuffer": ("add", "take", "state"),
    "Coupling": ("from_others", "cancellation"),
}
API_INTRODUCTION = """For a training loop of your own:

    import counterpoise as poise

Arrays are lists, numpy arrays or torch tensors. Axes: R rollouts, G rollouts of a prompt, T tokens
of a rollout, N tokens of a step, V vocabulary, D hidden size. A wrong argument raises
`poise.PoiseError`, whose one line names it; `help(poise.compose)` shows a small example of each."""

Definition = ast.FunctionDef | ast.ClassDef


def api_page() -> str:
    """docs/reference/api.md: the public names by topic, each topic with its example verbatim."""
    lines = ["# Python API", "", NOTICE, "", API_INTRODUCTION, ""]
    for title, (example, names) in API_SECTIONS.items():
        source = (ROOT / "examples" / example).read_text(encoding="utf-8")
        lines += [f"## {title}", "", f"`examples/{example}`:", "", "```python", source.rstrip()]
        lines += ["```", ""]
        for name in names:
            lines += api_entry(name, find_public(name))
        if title == "Advantages":
            lines += ["Each method is a function of the rewards [G] of one group, too:", ""]
            registered = [name for name in public_names() if name in ADVANTAGES]
            formulas = {name: ast.get_docstring(find_public(name)) or "" for name in registered}
            lines += [f"- `{name}`: {text.splitlines()[0]}" for name, text in formulas.items()]
            lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def public_names() -> dict[str, str]:
    return counterpoise.PUBLIC_NAMES


def find_public(name: str) -> Definition:
    """The definition of a public name; of an overloaded function the one that is documented."""
    module, _, attribute = public_names()[name].partition(":")
    path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [n for n in tree.body if isinstance(n, Definition) and n.name == attribute]
    return found[-1]


def api_entry(name: str, definition: Definition) -> list[str]:
    """Heading, signature, and the docstring; of a class also its fields and methods."""
    lines = [f"### `{name}`", ""]
    members = definition.body if isinstance(definition, ast.ClassDef) else []
    methods = [m for m in members if isinstance(m, ast.FunctionDef)]
    initialisers = [m for m in methods if m.name == "__init__"]
    signatures = [definition] if isinstance(definition, ast.FunctionDef) else initialisers
    lines += [f"    {name}({arguments_without_types(f)})" for f in signatures]
    fields = [member for member in members if isinstance(member, ast.AnnAssign)]
    if fields:
        lines += [f"    {line.strip()}" for line in source_lines(public_names()[name], fields)]
    lines += ["", *docstring_lines(ast.get_docstring(definition) or ""), ""]
    listed = [method for method in methods if method.name in API_METHODS.get(name, ())]
    for method in listed:
        summary = (ast.get_docstring(method) or "").splitlines()[0]
        lines.append(f"- `.{method.name}{method_arguments(method)}`: {summary}")
    return [*lines, ""] if listed else lines


def arguments_without_types(function: ast.FunctionDef) -> str:
    arguments = copy.deepcopy(function.args)
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.kwarg]
    for argument in every:
        if argument:
            argument.annotation = None
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    return ast.unparse(arguments)


def method_arguments(method: ast.FunctionDef) -> str:
    is_property = any(ast.unparse(d) == "property" for d in method.decorator_list)
    return "" if is_property else f"({arguments_without_types(method)})"


def source_lines(entry: str, nodes: Sequence[ast.stmt]) -> list[str]:
    """The lines of these nodes as they stand in the source, with the comments beside them."""
    module = entry.partition(":")[0]
    path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    text = path.read_text(encoding="utf-8").splitlines()
    return [text[node.lineno - 1] for node in nodes]


def docstring_lines(docstring: str) -> list[str]:
    """A docstring as Markdown: what is indented below a label becomes a code block.

    Its example, which comes last, is left out: the page has larger ones.
    """
    lines = []
    for line in docstring.partition("\nExample:\n")[0].rstrip().splitlines():
        lines += [line, ""] if re.fullmatch(r"[A-Z]\w+:", line) else [line]
    return lines


PAGES: dict[str, Callable[[], str]] = {"tree.md": tree_page, "api.md": api_page}


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
