"""Numbers as the documents print them: intervals in a text, cells of a table, agreement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "data"
RESULTS = ROOT / "docs" / "results"
NUMBER = r"[-+]?\d*\.?\d+"


def page_text(name: str) -> str:
    return (RESULTS / name).read_text(encoding="utf-8")


def section(text: str, start: str, end: str | None = None) -> str:
    first = text.index(start)
    return text[first : text.index(end, first) if end else None]


def printed_intervals(text: str) -> list[tuple[str, str, str]]:
    """(mean, low, high) of every "12.3 % [10.1, 14.5]", also where a line ends in it."""
    text = " ".join(text.replace("\n>", "\n").split())
    unit = r"(?: points per unit| points| %| times)?(?: of it)?"
    return re.findall(rf"({NUMBER}){unit} \[({NUMBER}), ({NUMBER})\]", text)


def is_among(
    printed: Sequence[str], known: Iterable[Sequence[float]], rounding: float = 1e-9
) -> bool:
    """To as many digits as are printed; `rounding` is what the known ones have lost already."""
    tolerances = [0.5 * 10.0 ** -len(x.partition(".")[2]) + rounding for x in printed]
    return any(
        all(abs(float(a) - b) <= c for a, b, c in zip(printed, candidate, tolerances, strict=True))
        for candidate in known
    )


def table_rows(text: str, heading: str) -> Iterator[list[str]]:
    """The cells of every row of the table whose first line begins with `heading`."""
    lines = text[text.index(heading) :].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
