"""The page of an evaluation: a table as the paper's, every problem of every benchmark, responses.

Responses are the bulk, so each cell of the map carries a few of them, right and wrong ones if there
are both; how many follows from the room there is (TEXT_CHARACTERS before deflating).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.cells import Cell, Judged, read_cells
from counterpoise.lab.evaluate.pass_curves import curves
from counterpoise.lab.evaluate.score import right
from counterpoise.lab.evaluate.summary import Summary, summarise
from counterpoise.report.charts.render import packed, render
from counterpoise.report.pages.assemble import whole_page, write_page
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import LONGEST, visible

ASSETS = ("summary.css", "evaluation.css")
TEXT_CHARACTERS = 24_000_000  # of all responses on the page
SHOWN = 8  # responses of a cell, at most
SHORTEST = 600  # characters of a response, at least


def write_evaluation(folder: Path, out: Path | None = None) -> Path:
    """Write the page of the evaluation in `folder`; by default to FOLDER/report.html."""
    cells = [cell for cell in read_cells(folder) if cell.done]
    if not cells:
        raise PoiseError(f"{folder} holds no judged problem yet: give the poise eval again")
    summary = summarise(cells)
    panels = {
        "summary": table(summary),
        "problems": problems(summary, cells),
        "curves": curves(summary),
        "details": details(summary),
    }
    title = folder.resolve().name
    return write_page(
        out or folder / "report.html", whole_page("Counterpoise evaluation", title, panels)
    )


def table(summary: Summary) -> Panel:
    best = {
        name: max(line.scores[name].average.mean for line in summary.lines if name in line.scores)
        for name in summary.benchmarks
    }
    return Panel("", "", render("evaluation_table.html", s=summary, best=best), assets=ASSETS)


def details(summary: Summary) -> Panel:
    return Panel(
        "Behind the numbers",
        "Every interval is at 95 % and counts problems, not samples: samples of one problem are "
        "dependent. pass@n and maj@n are over all samples of a problem.",
        render("evaluation_details.html", s=summary),
        label="Details",
        assets=ASSETS,
    )


def problems(summary: Summary, cells: Sequence[Cell]) -> Panel:
    """The map: a column a problem, a row a model (and way of sampling), a cell its samples."""
    shown, longest = room(cells)
    maps = [
        map_of(name, summary, [c for c in cells if c.header.benchmark == name], shown, longest)
        for name in summary.benchmarks
    ]
    samples = max(cell.header.samples for cell in cells)
    left = f"Up to {shown} of {samples} responses of a cell are shown" if shown < samples else ""
    cut = f"{'; r' if left else 'R'}esponses are cut at {longest:,} characters."
    return Panel(
        "Problems",
        "Which problems are solved how often. A column is a problem, a row a model; the stronger "
        "the colour, the more samples are right. Choose a cell to read the responses behind it.",
        render("evaluation_map.html", benchmarks=summary.benchmarks, note=left + cut),
        data={"benchmarks": maps},
        assets=(*ASSETS, "evaluation.js"),
    )


def map_of(
    name: str, summary: Summary, cells: Sequence[Cell], shown: int, longest: int
) -> dict[str, Any]:
    ids = list(dict.fromkeys(i for cell in cells for i in cell.done))
    first: dict[str, Judged] = {}
    for cell in cells:
        first = cell.done | first
    return {
        "name": name,
        "title": visible(summary.titles[name], 80),
        "samples": max(cell.header.samples for cell in cells),
        "rows": [visible(label(cell, summary), 80) for cell in cells],
        "ids": [visible(i, 80) for i in ids],
        "right": [[right(cell.done[i]) if i in cell.done else None for i in ids] for cell in cells],
        "asked": packed([[visible(first[i].problem), visible(first[i].answer, 400)] for i in ids]),
        "texts": [
            packed([responses(cell.done[i], shown, longest) if i in cell.done else [] for i in ids])
            for cell in cells
        ],
    }


def label(cell: Cell, summary: Summary) -> str:
    at = f" {cell.header.setting}" if summary.swept else ""
    return cell.header.model + at


def responses(one: Judged, shown: int, longest: int) -> list[list[Any]]:
    """[sample, reward, tokens, finished, text] of a few samples, the scarcer outcome first."""
    by_outcome: dict[bool, list[int]] = {True: [], False: []}
    for g, reward in enumerate(one.rewards):
        by_outcome[reward > 0].append(g)
    few, many = sorted(by_outcome.values(), key=len)
    taken = few[: max(1, shown // 2)]
    taken = sorted([*taken, *many[: shown - len(taken)]])
    return [
        [g, one.rewards[g], one.tokens[g], one.finished[g], visible(one.responses[g], longest)]
        for g in taken
    ]


def room(cells: Sequence[Cell]) -> tuple[int, int]:
    """(responses of a cell, characters of a response) that fit into the page."""
    counted = sum(len(cell.done) for cell in cells)
    for shown in (SHOWN, 4, 2):
        sizes = sum(
            min(len(text), LONGEST)
            for cell in cells
            for one in cell.done.values()
            for text in one.responses[:shown]
        )
        if sizes <= TEXT_CHARACTERS:
            return shown, LONGEST
    return 2, max(SHORTEST, min(LONGEST, TEXT_CHARACTERS // (2 * counted)))
