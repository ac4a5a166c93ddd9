"""`poise look`: the tokens of one rollout in the terminal."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from report.synthetic import PIECES, without_pull, write_run
from rich.console import Console

from counterpoise.cli.token_view import read_token_view
from counterpoise.cli.token_view_text import RAMPS, print_token_view
from counterpoise.errors import PoiseError, explain_damage, format_ranges
from counterpoise.report.panels import tokens
from counterpoise.report.run_data import RunData
from counterpoise.report.traces import read_pushes, read_trace, stored_iterations

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("made") / "run", tau=0.0)


def seen(run: Path, *, colour: Any = None, width: int = 100, **asked: Any) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=colour is not None, color_system=colour
    )
    print_token_view(read_token_view(run, **asked), console)
    return file.getvalue()


def first_row(run: Path) -> int:
    return min(read_trace(run, stored_iterations(run)[-1]).row_spans)


def test_the_last_step_and_the_first_row_unless_asked_otherwise(run: Path):
    text = seen(run)
    assert text == seen(run, iteration=4, row=first_row(run), quantity_name="displacement")
    assert f"iteration 4  row {first_row(run)}  step " in text
    assert "How many?" in text
    assert "reward 1" in text
    assert text != seen(run, iteration=2)


def test_without_colour_marks_show_the_direction(run: Path):
    text = seen(run)
    assert "\x1b" not in text
    strip = text.split("\n\n")[2]
    size = len(read_trace(run, 4).row_columns(first_row(run))["token"])
    words = "".join(PIECES[:size]).replace("\n", "↵\n").replace(" 3", "·3")
    assert re.sub("[△▲▽▼]", "", strip) == words.rstrip("\n")
    assert set(strip) & set("△▲▽▼")
    assert "▼ -" in text  # the legend


def test_marks_are_where_the_numbers_are(run: Path):
    row = first_row(run)
    trace = read_trace(run, 4)
    full = np.quantile(np.abs(trace.columns["displacement"]), 0.98)
    moved = trace.row_columns(row)["displacement"]
    strip = seen(run).split("\n\n")[2]
    shares = np.sqrt(np.minimum(np.abs(moved) / full, 1))
    for mark, wanted in (
        ("▲", (moved > 0) & (shares >= 0.5)),
        ("△", (moved > 0) & (shares >= 0.2) & (shares < 0.5)),
        ("▼", (moved < 0) & (shares >= 0.5)),
        ("▽", (moved < 0) & (shares >= 0.2) & (shares < 0.5)),
    ):
        assert strip.count(mark) == wanted.sum(), mark


def test_colour_is_a_background_and_changes_no_text(run: Path):
    text = seen(run, colour="truecolor")
    assert "\x1b[38;2;255;255;255;48;2;" in text
    assert not set("△▲▽▼") & set(ESCAPES.sub("", text).split("\n\n")[2])
    assert "48;2;" not in seen(run, colour="standard")  # sixteen colours are too few: marks
    assert set(seen(run, colour="standard")) & set("△▲▽▼")


def test_white_text_is_readable_on_every_colour():
    def light(rgb: tuple[int, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
                  for c in (part / 255 for part in rgb)]  # fmt: skip
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    for ends in RAMPS.values():
        for share in np.linspace(0, 1, 9):
            rgb = tuple(a + share * (b - a) for a, b in zip(*ends, strict=True))
            assert 1.05 / (light(rgb) + 0.05) >= 4.5


def test_the_strongest_movers_come_first(run: Path):
    table = seen(run, quantity_name="push").split("\n\n")[-1].splitlines()
    assert table[0].split()[:2] == ["token", "text"]
    sizes = [abs(float(re.findall(r"[+-]\d\S*", line)[0])) for line in table[1:]]
    assert sizes == sorted(sizes, reverse=True)


def test_a_token_and_those_that_pushed_it(run: Path):
    pushes = read_pushes(run, 4)
    assert pushes is not None
    row = min(pushes.rows)
    text = seen(run, row=row, token=1)
    assert "‹ answer›" in text  # pointed at in the strip
    assert "same token, other prompts" in text
    *_, table = text.split("\n\n")
    wanted = sorted((x for _, _, x in pushes.on_token(row, 1)), reverse=True)
    shown = [float(line.split()[0]) for line in table.splitlines()[1:]]
    assert shown == pytest.approx(wanted, rel=0.01)
    assert "‹" not in seen(run, row=row, token=1, colour="truecolor")


def test_pushes_have_one_notation_and_their_unit(run: Path):
    text = seen(run, token=1)
    table = text[text.index("pushes from") : text.index("Through the output layer")]
    cells = re.findall(r"(?<= )(?:[+-]\d\S*|0)(?=\s)", table)
    assert len(cells) == 14  # eight parts, four sums of two, its own, the sum of all
    assert all(cell == "0" or re.fullmatch(r"[+-]\d\.\d\de[+-]\d\d", cell) for cell in cells)
    assert "per unit of learning rate" in text


def test_a_token_that_was_clipped_says_so(tmp_path: Path):
    clipped = write_run(tmp_path / "run", tau=0.0)
    row = first_row(clipped)
    told = "no gradient of its own: clipped, or masked by a rule such as credit.rule"
    without_pull(clipped, row, 1)
    assert told in seen(clipped, row=row, token=1)
    assert told not in seen(clipped, row=row, token=0)


def test_who_pushed_whom_may_not_be_stored(run: Path, tmp_path: Path):
    pushes = read_pushes(run, 4)
    assert pushes is not None
    other = max(set(read_trace(run, 4).row_spans) - pushes.rows)
    assert f"is stored for rows {format_ranges(sorted(pushes.rows))} only" in seen(
        run, row=other, token=0
    )
    off = write_run(tmp_path / "run", microscope="off", rollouts=False)
    text = seen(off, token=0)
    assert "This update's pushes were not stored." in text
    assert "poise replay" in text
    assert "displacement" not in text
    assert "entropy" in text


def test_a_row_that_was_not_measured_is_shown_by_its_entropy(run: Path, tmp_path: Path):
    """The monitor samples passes: other rows of the iteration have a displacement."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (path,) = (copy / "tokens").glob("step_00004.*")
    table, row = pq.read_table(path), first_row(run)
    is_row = pc.equal(table["row"], row)
    measured = ("displacement", *(name for name in table.column_names if name.startswith("pull")))
    for name in measured:
        column = pc.if_else(is_row, float("nan"), table[name]).cast(table[name].type)
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, path)
    (copy / "checksums.jsonl").unlink()
    text = seen(copy, row=row)
    assert text.splitlines()[4:] != seen(run, row=row).splitlines()[4:]
    assert "nan" not in text
    with pytest.raises(PoiseError, match=f"did not store 'displacement' of row {row}: choose one"):
        seen(copy, row=row, quantity_name="displacement")


def test_a_damaged_plan_is_one_line(run: Path, tmp_path: Path):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    plans = [json.loads(line) for line in (copy / "plans.jsonl").read_text().splitlines()]
    plans[-1]["steps"] = [[i for i in step if i != first_row(run)] for step in plans[-1]["steps"]]
    (copy / "plans.jsonl").write_text("".join(f"{json.dumps(plan)}\n" for plan in plans))
    with pytest.raises(PoiseError, match="is damaged"), explain_damage(copy):
        seen(copy)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"iteration": 99}, "no tokens of iteration 99, only of 1-4"),
        ({"row": 999}, "iteration 4 trained on no row 999, only on rows "),
        ({"row": -1}, "no row -1"),
        ({"token": 99}, r"has tokens 0 to \d, not 99"),
        ({"token": -1}, "not -1"),
        ({"quantity_name": "entropi"}, "did you mean 'entropy'"),
        ({"quantity_name": "value"}, "unknown quantity 'value'"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(run: Path, asked: dict[str, Any], message: str):
    with pytest.raises(PoiseError, match=message) as fault:
        seen(run, **asked)
    assert "\n" not in str(fault.value)


def test_a_run_without_tokens(tmp_path: Path):
    with pytest.raises(PoiseError, match="stored no tokens"):
        seen(write_run(tmp_path / "run", microscope="none"))
    untrained = write_run(tmp_path / "untrained", microscope="none")
    metrics = [json.loads(line) for line in (untrained / "metrics.jsonl").open()]
    lines = [json.dumps(record | {"steps": 0}) for record in metrics]
    (untrained / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    with pytest.raises(PoiseError, match="took no optimizer step, so there are no trained tokens"):
        seen(untrained)
    panel = tokens.panel(RunData.read(untrained))
    assert panel is not None
    assert panel.caption == "The run took no optimizer step, so there are no trained tokens."
    assert "replay" not in str(panel.body)
    with pytest.raises(PoiseError, match="holds no run"):
        seen(tmp_path)


def test_model_output_cannot_take_over_the_terminal(tmp_path: Path):
    pieces = (
        "[bold red]x[/]", "\x1b[2J\x1b]0;title\x07", "\x9b31m", "\u202eabc", "B" * 999, ":smile:",
        "\r", "[/]",
    )  # fmt: skip
    run = write_run(tmp_path / "run", tau=0.0, prompt="[blink]\x1b[31m?", pieces=pieces)
    lengths = {
        row: len(read_trace(run, 4).row_columns(row)["token"])
        for row in read_trace(run, 4).row_spans
    }
    row = max(lengths, key=lambda r: lengths[r])
    for asked in ({}, {"token": 1}):
        text = seen(run, row=row, **asked)
        assert not set(text) & set("\x1b\x07\x9b\r\u202e")
        assert "[blink]␛[31m?" in text
        assert "[bold red]x[/]" in re.sub("[△▲▽▼\n]", "", text)
        assert "B" * 25 not in text.replace("\n", "")
        assert ":smile:" in re.sub("[△▲▽▼\n]", "", text)
        coloured = seen(run, row=row, colour="truecolor", **asked)
        assert not set(ESCAPES.sub("", coloured)) & set("\x1b\x07\x9b\r\u202e")


def test_ranges():
    assert format_ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert format_ranges([]) == ""
