"""The page of an evaluation: a table as the paper's, every problem of every benchmark, responses.

Responses are the bulk, so each cell of the map carries a few of them, right and wrong ones if there
are both; how many follows from the room there is (TEXT_CHARACTERS before deflating).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.pass_curves import pass_curves_panel
from counterpoise.lab.evaluate.result_files import JudgedProblem, ResultFile, read_result_files
from counterpoise.lab.evaluate.score import count_right
from counterpoise.lab.evaluate.summary import EvaluationSummary, summarise
from counterpoise.report.charts.render import pack_json, render
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import MAX_CHARACTERS, make_visible

ASSETS = ("summary.css", "evaluation.css")
TEXT_CHARACTERS = 24_000_000  # of all responses on the page
MAX_RESPONSES = 8  # responses of a cell, at most
MIN_RESPONSE_CHARACTERS = 600  # characters of a response, at least


def write_evaluation_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of the evaluation in `folder`; by default to FOLDER/report.html."""
    cells = [cell for cell in read_result_files(folder) if cell.judged]
    if not cells:
        raise PoiseError(f"{folder} holds no judged problem yet: give the poise eval again")
    summary = summarise(cells)
    panels = {
        "summary": table_panel(summary),
        "problems": problems_panel(summary, cells),
        "curves": pass_curves_panel(summary),
        "details": details_panel(summary),
    }
    title = folder.resolve().name
    return write_page(
        out or folder / "report.html", assemble_page("Counterpoise evaluation", title, panels)
    )


def table_panel(summary: EvaluationSummary) -> Panel:
    best = {
        name: max(line.scores[name].average.mean for line in summary.lines if name in line.scores)
        for name in summary.benchmarks
    }
    return Panel("", "", render("evaluation_table.html", s=summary, best=best), assets=ASSETS)


def details_panel(summary: EvaluationSummary) -> Panel:
    return Panel(
        "Behind the numbers",
        "Every interval is at 95 % and counts problems, not samples: samples of one problem are "
        "dependent. pass@n and maj@n are over all samples of a problem.",
        render("evaluation_details.html", s=summary),
        label="Details",
        assets=ASSETS,
    )


def problems_panel(summary: EvaluationSummary, cells: Sequence[ResultFile]) -> Panel:
    """The map: a column a problem, a row a model (and way of sampling), a cell its samples."""
    shown, longest = choose_response_limits(cells)
    maps = [
        benchmark_map(
            name, summary, [c for c in cells if c.header.benchmark == name], shown, longest
        )
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


def benchmark_map(
    name: str, summary: EvaluationSummary, cells: Sequence[ResultFile], shown: int, longest: int
) -> dict[str, Any]:
    ids = list(dict.fromkeys(i for cell in cells for i in cell.judged))
    first: dict[str, JudgedProblem] = {}
    for cell in cells:
        first = cell.judged | first
    return {
        "name": name,
        "title": make_visible(summary.titles[name], 80),
        "samples": max(cell.header.samples for cell in cells),
        "rows": [make_visible(row_label(cell, summary), 80) for cell in cells],
        "ids": [make_visible(i, 80) for i in ids],
        "right": [
            [count_right(cell.judged[i]) if i in cell.judged else None for i in ids]
            for cell in cells
        ],
        "asked": pack_json(
            [[make_visible(first[i].problem), make_visible(first[i].answer, 400)] for i in ids]
        ),
        "texts": [
            pack_json(
                [
                    choose_responses(cell.judged[i], shown, longest) if i in cell.judged else []
                    for i in ids
                ]
            )
            for cell in cells
        ],
    }


def row_label(cell: ResultFile, summary: EvaluationSummary) -> str:
    at = f" {cell.header.setting}" if summary.swept else ""
    return cell.header.model + at


def choose_responses(one: JudgedProblem, shown: int, longest: int) -> list[list[Any]]:
    """[sample, reward, tokens, finished, text] of a few samples, the scarcer outcome first."""
    by_outcome: dict[bool, list[int]] = {True: [], False: []}
    for g, reward in enumerate(one.rewards):
        by_outcome[reward > 0].append(g)
    few, many = sorted(by_outcome.values(), key=len)
    taken = few[: max(1, shown // 2)]
    taken = sorted([*taken, *many[: shown - len(taken)]])
    return [
        [g, one.rewards[g], one.tokens[g], one.finished[g], make_visible(one.responses[g], longest)]
        for g in taken
    ]


def choose_response_limits(cells: Sequence[ResultFile]) -> tuple[int, int]:
    """(responses of a cell, characters of a response) that fit into the page."""
    counted = sum(len(cell.judged) for cell in cells)
    for shown in (MAX_RESPONSES, 4, 2):
        sizes = sum(
            min(len(text), MAX_CHARACTERS)
            for cell in cells
            for one in cell.judged.values()
            for text in one.responses[:shown]
        )
        if sizes <= TEXT_CHARACTERS:
            return shown, MAX_CHARACTERS
    return 2, max(MIN_RESPONSE_CHARACTERS, min(MAX_CHARACTERS, TEXT_CHARACTERS // (2 * counted)))
