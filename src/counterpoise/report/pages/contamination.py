"""Training prompts that are in a benchmark, side by side: a page of their own, a panel of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import whole_page, write_page
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import visible
from counterpoise.task.contamination.copy_rules import KINDS
from counterpoise.task.contamination.shared_spans import shared_spans
from counterpoise.task.contamination.training_overlap import CONTAMINATION_FILE, read_contamination

Data = dict[str, Any]  # what task/contamination/search.py's to_data gives
MOST = 400  # pairs of one benchmark that are shown
IN_A_RUN = 20  # in the report of a run
ASSETS = ("contamination.css",)
MEANING = {
    "exact": "the same letters and digits",
    "near": "more than half of all runs of ten words",
    "reworded": "mostly the same words and formulas, numbers kept, answers compatible",
    "translated": "mostly the same formulas in another script, answers compatible",
    "related": "the same set-up, with other numbers or another question: no copy",
}


def write_contamination(data: Data, title: str, out: Path) -> Path:
    """The page of `poise contamination`."""
    panels = {"overview": overview("", data)}
    for bench in data["benchmarks"]:
        pairs = [match for match in data["matches"] if match["benchmark"] == bench["name"]]
        if pairs:
            panels[f"benchmark-{bench['name']}"] = _pairs(bench, pairs)
    return write_page(out, whole_page("Contamination", title, panels))


def panel(run: RunData) -> Panel | None:
    """What a run was warned of; nothing if task.benchmarks named none, or none overlapped."""
    file = run.path / CONTAMINATION_FILE
    if not file.is_file():
        return None
    data = read_contamination(file)
    if not data["matches"]:
        return None
    shown = sorted(data["matches"], key=lambda match: KINDS.index(match["kind"]))[:IN_A_RUN]
    head = overview("Benchmarks in the training set", data)
    return Panel(
        head.title,
        head.caption,
        head.body,
        after=render("contamination_pairs.html", pairs=[_sides(match) for match in shown], more=0),
        label="Contamination",
        assets=ASSETS,
    )


def overview(title: str, data: Data) -> Panel:
    return Panel(
        title,
        f"{data['train_copies']:,} of {data['train']:,} training prompts are copies of benchmark "
        "problems. A problem counts once, by its surest pair.",
        render("contamination.html", data=data, kinds=KINDS, meaning=MEANING),
        assets=ASSETS,
    )


def _pairs(bench: Data, pairs: list[Data]) -> Panel:
    sides = [_sides(match) for match in pairs[:MOST]]
    return Panel(
        bench["name"],
        f"{bench['copied']} of {bench['items']} problems are in the training set.",
        render("contamination_pairs.html", pairs=sides, more=max(0, len(pairs) - MOST)),
        assets=ASSETS,
    )


def _sides(match: Data) -> Data:
    item, train = match["item"], match["train"]
    left, right = shared_spans(visible(item["problem"]), visible(train["problem"]))
    return {**match, "sides": (("benchmark", item, left), ("training", train, right))}
