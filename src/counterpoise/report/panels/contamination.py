"""Panels of training prompts that occur in a benchmark, side by side."""

from __future__ import annotations

from typing import Any

from counterpoise.report.charts.render import render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import make_visible
from counterpoise.store.folder import CONTAMINATION
from counterpoise.task.contamination.copy_rules import KINDS
from counterpoise.task.contamination.shared_spans import shared_spans
from counterpoise.task.contamination.training_overlap import read_contamination

Data = dict[str, Any]  # JSON made by overlap_to_data in task/contamination/search.py
MAX_PAIRS = 400  # shown for one benchmark
MAX_PAIRS_IN_RUN = 20  # shown in the report of a run
ASSETS = ("contamination.css",)
KIND_MEANINGS = {
    "exact": "the same letters, digits and operators",
    "near": "the two texts share more than half of all their ten-word sequences",
    "reworded": "mostly the same words and formulas, numbers kept, answers compatible",
    "translated": "mostly the same formulas in another script, answers compatible",
    "related": "the same set-up with other numbers or another question: not a copy",
}


def panel(run: RunData) -> Panel | None:
    """Panel of the overlap found when the run started; None if none was found or looked for."""
    overlap_path = run.path / CONTAMINATION
    if not overlap_path.is_file():
        return None
    data = read_contamination(overlap_path)
    if not data["matches"]:
        return None
    # KINDS is ordered from certain to doubtful matches.
    surest_first = sorted(data["matches"], key=lambda match: KINDS.index(match["kind"]))
    overview = overview_panel("Benchmarks in the training set", data)
    return Panel(
        overview.title,
        overview.caption,
        overview.body,
        after=render(
            "contamination_pairs.html",
            pairs=[_pair_sides(match) for match in surest_first[:MAX_PAIRS_IN_RUN]],
            more=max(0, len(surest_first) - MAX_PAIRS_IN_RUN),
            all_in=f"{CONTAMINATION} of the run has all of them",
        ),
        label="Contamination",
        assets=ASSETS,
    )


def overview_panel(title: str, data: Data) -> Panel:
    return Panel(
        title,
        f"{data['train_copies']:,} of {data['train']:,} training prompts are copies of benchmark "
        "problems. A problem with several matches counts once, as its most certain kind.",
        render("contamination.html", data=data, kinds=KINDS, meaning=KIND_MEANINGS),
        assets=ASSETS,
    )


def benchmark_panel(benchmark: Data, matches: list[Data]) -> Panel:
    shown_pairs = [_pair_sides(match) for match in matches[:MAX_PAIRS]]
    return Panel(
        benchmark["name"],
        f"{benchmark['copied']} of {benchmark['items']} problems are in the training set.",
        render(
            "contamination_pairs.html",
            pairs=shown_pairs,
            more=max(0, len(matches) - MAX_PAIRS),
            all_in="poise contamination --json writes all of them",
        ),
        assets=ASSETS,
    )


def _pair_sides(match: Data) -> Data:
    """The match with the texts of its two sides, cut into shared and other spans."""
    benchmark_item, training_item = match["item"], match["train"]
    benchmark_spans, training_spans = shared_spans(
        make_visible(benchmark_item["problem"]), make_visible(training_item["problem"])
    )
    return {
        **match,
        "sides": (
            ("benchmark", benchmark_item, benchmark_spans),
            ("training", training_item, training_spans),
        ),
    }
