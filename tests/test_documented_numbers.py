"""Numbers of the documents are those of docs/data/: experiments judged anew, studies as stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from counterpoise.lab.experiments import pilot, verdicts
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.pieces import read_piece

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "experiment.md").read_text(encoding="utf-8")
# Columns of the page's tables, and where they stand in the two tables of results.md.
COMPARED, BESIDE = (2, 3, 4, 6, 7, 11), (2, 3, 5, 8, 9, 12)
SECTIONS = {
    "smollm2-interventions": ("### Arms", "### Waiting or balance?"),
    "smollm2-waiting": ("### Waiting or balance?", "### Cancellation itself"),
}
IN_TEXT_ONLY = {  # experiments without a table on the page -> the pieces that hold their runs
    "smollm2-cancellation": ("smollm2-cancellation",),
    "smollm2-cancellation-dose": ("smollm2-cancellation", "smollm2-cancellation-dose"),
}
ABOUT = {  # where a page speaks of them
    "README.md": r"^\|[^\n]*results/experiments\.md#[^\n]*$",
    "docs/findings.md": r"On SmolLM2-135M, where it is.*?\n\n",
    "docs/experiment.md": r"### Arms.*",
}
Rows = dict[tuple[str, str], list[str]]  # (rate, arm) -> cells


def tables(name: str) -> str:
    experiment = read_experiment(name)
    runs: Runs = {}
    for piece in IN_TEXT_ONLY.get(name, (name,)):
        runs |= read_piece(ROOT / "docs" / "data" / f"{piece}.parquet", experiment).runs
    return verdicts.results_markdown(runs, experiment)


def found(name: str) -> Rows:
    rows: Rows = {}
    rate = ""
    for line in tables(name).splitlines():
        if begun := re.match(r"Learning rate (\S+):", line):
            rate = f"{float(begun[1]):g}"
        if not rate or not line.startswith("| ") or line.startswith(("| arm", "| ---")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        taken = BESIDE if (rate, cells[0]) in rows else COMPARED
        rows.setdefault((rate, cells[0]), []).extend(cells[i] for i in taken)
    return rows


def written(name: str) -> Rows:
    start, end = SECTIONS[name]
    section = PAGE[PAGE.index(start) : PAGE.index(end) if end else None]
    rows: Rows = {}
    rate = ""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if begun := re.match(r"\| lr (\S+) ", line):
            rate = f"{float(begun[1]):g}"
        elif line.startswith("| "):
            rows[rate, cells[0]] = cells[1:]
    return rows


def agree(said: str, measured: str) -> bool:
    """Every number of a cell, to as many digits as are said."""
    pairs = [re.findall(r"[-+]?\d+(?:\.\d+)?", text) for text in (said, measured)]
    return len(pairs[0]) == len(pairs[1]) and all(
        abs(float(a) - float(b)) <= 0.51 * 10.0 ** -len(a.partition(".")[2])
        for a, b in zip(*pairs, strict=True)
    )


@pytest.mark.parametrize("name", SECTIONS)
def test_the_tables_are_those_of_the_runs(name: str) -> None:
    said, measured = written(name), found(name)
    assert said.keys() == measured.keys()
    assert len(said) >= 6
    for key, cells in said.items():
        for cell, truth in zip(cells, measured[key], strict=True):
            assert agree(cell, truth), (key, cell, truth)


def intervals(text: str) -> list[tuple[str, str, str]]:
    """(mean, low, high) of every "12.3 % [10.1, 14.5]"."""
    number = r"([-+]?\d+(?:\.\d+)?)"
    return re.findall(rf"{number}(?: points per unit| points| %)?\s\[{number},\s{number}\]", text)


def is_among(said: Sequence[str], known: Iterable[Sequence[float]], rounding: float) -> bool:
    """To as many digits as are said; `rounding` is what the known ones have lost already."""
    close = [0.5 * 10.0 ** -len(x.partition(".")[2]) + rounding for x in said]
    return any(
        all(abs(float(a) - b) <= c for a, b, c in zip(said, one, close, strict=True))
        for one in known
    )


@pytest.mark.parametrize("page", ABOUT)
def test_differences_in_the_text_are_those_of_the_runs(page: str) -> None:
    judged = "".join(map(tables, [*SECTIONS, *IN_TEXT_ONLY]))
    known = [tuple(map(float, one)) for one in intervals(judged)]
    text = (ROOT / page).read_text(encoding="utf-8")
    said = intervals("".join(re.findall(ABOUT[page], text, re.MULTILINE | re.DOTALL)))
    assert len(said) >= 4
    for one in said:
        assert is_among(one, known, 0.05), one


def test_findings_on_smollm2_are_those_that_are_stored() -> None:
    stored = pq.read_table(ROOT / "docs" / "data" / "smollm2-studies.parquet").to_pylist()
    found = [(r["value"], r["low"], r["high"]) for r in stored if r["low"] is not None]
    smaller = [(-mean, -high, -low) for mean, low, high in found]  # "smaller by"
    known = [tuple(scale * x for x in one) for one in (*found, *smaller) for scale in (1, 100)]
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    section = text[text.index("## On SmolLM2-135M") : text.index("## Changed after")]
    of_moved = {("85", "84", "85")}  # stored as a share of all tokens
    said = set(intervals(section)) - of_moved
    assert len(said) >= 20
    for one in said:
        assert is_among(one, known, 1e-9), one


def test_the_pilot_chooses_the_rates_of_the_experiment() -> None:
    experiment = read_experiment("smollm2-pilot")
    piece = read_piece(ROOT / "docs" / "data" / "smollm2-pilot.parquet", experiment)
    choice = pilot.choose_rates(piece.runs, experiment)
    assert f"**stable {choice.stable:.0e}, edge {choice.edge:.0e}**".replace("e-0", "e-") in PAGE
    assert (choice.stable, choice.edge) == tuple(read_experiment("smollm2-waiting").options.rates)
