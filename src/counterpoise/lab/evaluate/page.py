"""The page of an evaluation: the table of scores, a map of all problems, and responses.

Responses take up most of the page, so each cell of the map has only a few of them, right and wrong
ones if there are both. TEXT_CHARACTERS limits their total length before compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.pass_curves import pass_curves_panel
from counterpoise.lab.evaluate.result_files import JudgedProblem, ResultFile, read_result_files
from counterpoise.lab.evaluate.score import count_right, has_reward
from counterpoise.lab.evaluate.summary import EvaluationSummary, summarise
from counterpoise.report.charts.render import pack_json, render
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import MAX_CHARACTERS, make_visible

ASSETS = ("summary.css", "evaluation.css")
TEXT_CHARACTERS = 24_000_000  # total over all responses on the page
MAX_RESPONSES = 8  # maximum number of responses per cell
MIN_RESPONSE_CHARACTERS = 600  # a response is never cut shorter than this


def write_evaluation_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of the evaluation in `folder`; by default to FOLDER/report.html."""
    result_files = [result_file for result_file in read_result_files(folder) if result_file.judged]
    if not result_files:
        raise PoiseError(f"{folder} holds no judged problem yet: run the poise eval command again")
    summary = summarise(result_files)
    panels = {
        "summary": table_panel(summary),
        "problems": problems_panel(summary, result_files),
        "curves": pass_curves_panel(summary),
        "details": details_panel(summary),
    }
    title = folder.resolve().name
    return write_page(
        out or folder / "report.html", assemble_page("Counterpoise evaluation", title, panels)
    )


def table_panel(summary: EvaluationSummary) -> Panel:
    means = {
        name: [line.scores[name].average.mean for line in summary.lines if name in line.scores]
        for name in summary.benchmarks
    }
    # A benchmark has no score if no problem of it has a reward.
    best = {name: max(benchmark_means, default=None) for name, benchmark_means in means.items()}
    return Panel("", "", render("evaluation_table.html", summary=summary, best=best), assets=ASSETS)


def details_panel(summary: EvaluationSummary) -> Panel:
    return Panel(
        "Behind the numbers",
        "Intervals are at 95 % and treat problems, not samples, as independent."
        + (
            ""
            if summary.graded
            else " pass@n: any of the n samples of a problem is right. maj@n: their most frequent "
            "answer is right."
        ),
        render("evaluation_details.html", summary=summary),
        label="Details",
        assets=ASSETS,
    )


def problems_panel(summary: EvaluationSummary, result_files: Sequence[ResultFile]) -> Panel:
    """Panel of the map: a column per problem, a row per model and setting, a cell per result."""
    max_responses, max_characters = choose_response_limits(result_files)
    maps = [
        benchmark_map(
            name,
            summary,
            [result_file for result_file in result_files if result_file.header.benchmark == name],
            max_responses,
            max_characters,
        )
        for name in summary.benchmarks
    ]
    samples = max(result_file.header.samples for result_file in result_files)
    omission = (
        f"Up to {max_responses} of {samples} responses of a cell are shown"
        if max_responses < samples
        else ""
    )
    cut_note = f"{'; r' if omission else 'R'}esponses are cut at {max_characters:,} characters."
    return Panel(
        "Problems",
        "How often each problem is solved. A column is a problem, a row is a model; the stronger "
        "the colour, the more samples are right. Choose a cell to read its responses."
        + (" Rewards are graded: right means a reward above 0." if summary.graded else ""),
        render("evaluation_map.html", benchmarks=summary.benchmarks, note=omission + cut_note),
        data={"benchmarks": maps},
        assets=(*ASSETS, "evaluation.js"),
    )


def benchmark_map(
    name: str,
    summary: EvaluationSummary,
    result_files: Sequence[ResultFile],
    max_responses: int,
    max_characters: int,
) -> dict[str, Any]:
    problem_ids = list(
        dict.fromkeys(
            problem_id for result_file in result_files for problem_id in result_file.judged
        )
    )
    problem_by_id: dict[str, JudgedProblem] = {}
    for result_file in result_files:
        problem_by_id = result_file.judged | problem_by_id
    return {
        "name": name,
        "title": make_visible(summary.titles[name], 80),
        # Of each row: models of different commands may have different numbers of samples.
        "samples": [result_file.header.samples for result_file in result_files],
        "rows": [make_visible(row_label(result_file, summary), 80) for result_file in result_files],
        "ids": [make_visible(problem_id, 80) for problem_id in problem_ids],
        "right": [
            [
                # A problem without any reward is not part of the scores either.
                count_right(problem)
                if (problem := result_file.judged.get(problem_id)) and has_reward(problem)
                else None
                for problem_id in problem_ids
            ]
            for result_file in result_files
        ],
        "asked": pack_json(
            [
                [
                    make_visible(problem_by_id[problem_id].problem),
                    make_visible(problem_by_id[problem_id].answer, 400),
                ]
                for problem_id in problem_ids
            ]
        ),
        "texts": [
            pack_json(
                [
                    choose_responses(result_file.judged[problem_id], max_responses, max_characters)
                    if problem_id in result_file.judged
                    else []
                    for problem_id in problem_ids
                ]
            )
            for result_file in result_files
        ],
    }


def row_label(result_file: ResultFile, summary: EvaluationSummary) -> str:
    setting = f" {result_file.header.setting}" if summary.has_sweep else ""
    return result_file.header.model + setting


def choose_responses(
    problem: JudgedProblem, max_responses: int, max_characters: int
) -> list[list[Any]]:
    """[sample, reward, tokens, finished, text] of a few samples, with both outcomes if possible."""
    # The rarer outcome gets up to half of the places; the other one fills the rest.
    by_outcome: dict[bool, list[int]] = {True: [], False: []}
    for sample, reward in enumerate(problem.rewards):
        by_outcome[reward > 0].append(sample)
    rarer, commoner = sorted(by_outcome.values(), key=len)
    chosen_samples = rarer[: max(1, max_responses // 2)]
    chosen_samples = sorted([*chosen_samples, *commoner[: max_responses - len(chosen_samples)]])
    return [
        [
            sample,
            problem.rewards[sample],
            problem.tokens[sample],
            problem.finished[sample],
            make_visible(problem.responses[sample], max_characters),
        ]
        for sample in chosen_samples
    ]


def choose_response_limits(result_files: Sequence[ResultFile]) -> tuple[int, int]:
    """(maximum responses per cell, maximum characters per response) that fit into the page."""
    num_problems = sum(len(result_file.judged) for result_file in result_files)
    # First reduce the number of responses per cell, then their length.
    for max_responses in (MAX_RESPONSES, 4, 2):
        characters = sum(
            min(len(text), MAX_CHARACTERS)
            for result_file in result_files
            for problem in result_file.judged.values()
            for text in problem.responses[:max_responses]
        )
        if characters <= TEXT_CHARACTERS:
            return max_responses, MAX_CHARACTERS
    return 2, max(
        MIN_RESPONSE_CHARACTERS, min(MAX_CHARACTERS, TEXT_CHARACTERS // (2 * num_problems))
    )
