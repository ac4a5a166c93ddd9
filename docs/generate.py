"""Write the pages of docs/reference/ that say what the code says: `make docs`.

    tree.md    every module with the first line of its docstring

`tests/test_generated_docs.py` fails when a page is no longer what this script would write.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

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


PAGES: dict[str, Callable[[], str]] = {"tree.md": tree_page}


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
