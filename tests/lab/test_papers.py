"""The table of the papers: what it names exists, and engines are those of their own tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from counterpoise.cli import app
from counterpoise.config.load import load_config
from counterpoise.lab.papers import PaperItem, parse_table, read_papers, read_verdicts
from counterpoise.variants import STUDIES

ROOT = Path(__file__).parents[2]
PAPERS = read_papers(ROOT / "docs" / "papers.toml")
ITEMS = [(paper.name, item) for paper in PAPERS for item in paper.items]
NAMES = [f"{name}: {item.subject}" for name, item in ITEMS]
EACH = pytest.mark.parametrize("item", [item for _, item in ITEMS], ids=NAMES)


def test_nine_papers_and_every_figure_and_table_of_the_first() -> None:
    assert len(PAPERS) == 9
    assert len({paper.arxiv for paper in PAPERS}) == 9
    first = " ".join(item.subject for item in PAPERS[0].items)
    for number in range(1, 12):
        assert re.search(rf"Fig\. {number}\b", first), number
    for number in range(1, 5):
        assert f"Table {number}" in first
    assert all(f"Alg. {number}" in first for number in (1, 2))
    assert len(ITEMS) == len(set(NAMES)) > 80


@EACH
def test_options_and_commands_exist(item: PaperItem) -> None:
    if item.options:
        load_config("demo", [f"{name}={value}" for name, value in item.options.items()])
        left_over = re.sub(r"[\w.]+=(\[[^]]*\]|[\w.]+)", "", item.offered)
        assert left_over.strip(", ") == ""
    elif item.offered != "-":
        program, command, *arguments = item.offered.split()
        assert program == "poise"
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
        if command == "study":
            assert arguments[0] in STUDIES
        elif arguments and not arguments[0].startswith("-"):
            assert (ROOT / "runs" / f"{arguments[0]}.toml").is_file()


@EACH
def test_tests_have_the_tolerance_that_the_table_states(item: PaperItem) -> None:
    if not item.test:
        assert not re.fullmatch(r"[\d.]+e-\d+|exact", item.agreement), "which test?"
        return
    text = (ROOT / "tests" / item.test).read_text(encoding="utf-8")
    if re.fullmatch(r"[\d.]+e-\d+|0\.\d+", item.agreement):
        assert f"={item.agreement}" in text


@EACH
def test_claims_are_in_the_replication(item: PaperItem) -> None:
    verdicts = read_verdicts(ROOT / "docs" / "data" / "claims.csv")
    assert all(number in verdicts for number in item.claims)
    assert item.offered != "-" or item.lacks  # what is not here is said to be missing


def test_engines_are_those_whose_tables_honour_the_options() -> None:
    lines = """
    a | credit.weights=grail | - |
    b | credit.rule=sdpg | - |
    c | batch.composer=grouped | - |
    d | monitor.every=1 {native, TRL} | - |
    e | poise eval | - |
    f | - | - | all
    """
    items = parse_table("\n".join(line.strip() for line in lines.strip().splitlines()))
    assert [item.engines for item in items] == [
        "native, TRL", "native", "native, TRL, verl", "native, TRL", "native", "-",
    ]  # fmt: skip
