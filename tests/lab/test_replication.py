"""The claims table and its plot: cells, the page between its marks, colours by verdict."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import get_args

import pytest

from counterpoise.errors import PoiseError
from counterpoise.lab import replication
from counterpoise.lab.claims import CLAIMS, Claim, StoredRecords, read_claims
from counterpoise.lab.replication import BEGIN, END
from counterpoise.report.charts.figures import arrange_side_by_side
from counterpoise.statistics.finding import Verdict

MASKING = Claim(
    number="4",
    claim="equal tokens drive",
    figure="Table 1",
    model="embedded",
    quantity="Boost Rate",
    unit="%",
    decimals="0",
    effect="31",
    low="27",
    high="34",
    paper="74",
    n="64 prompts",
    verdict="not replicated",
    criterion="rises",
    rule="Replicated when it rises.",
    rule_fixed="after the runs",
    command="poise study masking",
    record="not stored",
    record_number="",
)
STORED = StoredRecords(Path(__file__).parents[2])
OTHER = replace(MASKING, model="other", effect="", low="", high="", n="", verdict="not tested")


def write_csv(path: Path, claims: list[Claim], names: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(names)] + [",".join(asdict(claim).values()) for claim in claims]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_line_of_each_table() -> None:
    lines = replication.claims_tables([MASKING, OTHER], STORED).splitlines()
    assert lines[0] == "|claim|embedded|other|"
    assert lines[2] == (
        "|4. equal tokens drive (Table 1)|**not replicated**, 31 % [27, 34]|**not tested**|"
    )
    assert lines[-1] == "|4|Boost Rate, paper 74|rises *|"


def test_further_numbers_come_from_the_records() -> None:
    measured = replace(MASKING, number="5", record="docs/data/embedded-polarity.parquet")
    not_measured = replace(OTHER, number="5")
    text = replication.claims_tables([measured, not_measured], STORED)
    assert "|5. reasoning share, joint minus positive-only|+3.2 points [+2.1, +4.3]||" in text


def test_page_and_plot_are_written_in_a_checkout(tmp_path: Path) -> None:
    names = [field.name for field in fields(Claim)]
    write_csv(tmp_path / CLAIMS, [MASKING, OTHER], names)
    for path in (replication.PAGE, replication.PLOT):
        (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / replication.PAGE).write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
    table, page, plot = replication.write_replication(tmp_path)
    assert read_claims(table) == [MASKING, OTHER]  # whose records are not stored
    text = page.read_text()
    assert text.startswith(f"Before.\n{BEGIN}\n\n|claim|")
    assert text.endswith(f"|\n\n{END}\nAfter.\n")
    assert "old" not in text
    assert plot.read_text().startswith("<svg")
    assert "Boost Rate" in plot.read_text()


def test_outside_a_checkout_it_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match="in a checkout of the repository"):
        replication.write_replication(tmp_path)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "claims.csv", [], ["number", "claim"])
    with pytest.raises(PoiseError, match="must have the columns number, claim, figure"):
        read_claims(tmp_path / "claims.csv")


def test_a_field_too_many_is_one_line(tmp_path: Path) -> None:
    names = [field.name for field in fields(Claim)]
    write_csv(tmp_path / "claims.csv", [replace(MASKING, criterion="rises, twice")], names)
    with pytest.raises(PoiseError, match="too many or too few fields: quote commas"):
        read_claims(tmp_path / "claims.csv")


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(PoiseError, match="has lost the marks"):
        replication.page_with_tables("No marks.", [MASKING], STORED)


def test_every_verdict_has_a_colour() -> None:
    assert set(replication.VERDICT_STYLES) == {*get_args(Verdict), "not tested"}
    claims = [MASKING, replace(MASKING, model="other", verdict="replicated")]
    drawn = str(arrange_side_by_side((replication.forest_figure(claims),)))
    assert "'style': 'negative'" in drawn
    assert "'style': 'positive'" in drawn
