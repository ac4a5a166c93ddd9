from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.synthetic import PIECES, without_pull, write_run

from counterpoise.errors import PoiseError
from counterpoise.report.charts.quantise import LEVELS, STEP, quantise
from counterpoise.report.charts.quantities import (
    PUSH_PARTS,
    available_quantities,
    colour_strength,
    full_colour_size,
    quantity_values,
)
from counterpoise.report.panels import tokens
from counterpoise.report.run_data import RunData
from counterpoise.report.traces import (
    Vocabulary,
    read_pushes,
    read_trace,
    read_vocabulary,
    stored_iterations,
)


def unpacked(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text)))


def decoded(column: dict[str, Any]) -> np.ndarray:
    codes = np.array([np.nan if k is None else k for k in column["codes"]])
    sizes = column["largest"] * STEP ** (np.abs(codes) - LEVELS)
    return np.where(codes == 0, 0.0, np.sign(codes) * sizes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return RunData.read(write_run(tmp_path_factory.mktemp("made") / "run", tau=0.0))


def last_view(run: RunData) -> dict[str, Any]:
    panel = tokens.panel(run)
    assert panel is not None
    return unpacked(panel.data["iterations"][-1]["packed"])


def test_a_quantised_number_is_within_half_a_percent():
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000) * 10.0 ** rng.uniform(-5, 1, size=2000)
    least = np.abs(x).max() * STEP**-LEVELS
    assert least < 1.3e-7 * np.abs(x).max()
    assert decoded(quantise(x)) == pytest.approx(x, rel=0.005, abs=least)


def test_what_has_no_size_is_zero_and_what_is_no_number_is_none():
    made = quantise(np.array([0.0, 1.0, -1e-9, np.nan, np.inf]))
    assert made["codes"] == [0, LEVELS, 0, None, None]
    assert quantise(np.zeros(2)) == {"largest": 0.0, "codes": [0, 0]}


def test_sums_of_parts_are_what_they_say():
    columns = {name: np.array([2.0**k]) for k, name in enumerate(("own", *PUSH_PARTS))}
    value = {q.name: quantity_values(q, columns)[0] for q in available_quantities(columns)}
    assert value["push"] == 2**9 - 1
    assert value["others"] == value["push"] - value["own"] == 2**9 - 2
    for a, b in (
        ("same_token", "other_token"),
        ("same_query", "other_query"),
        ("from_positive", "from_negative"),
    ):
        assert value[a] + value[b] == value["others"]
    both = "same_token_other_query_negative"
    assert value[both] == columns[both][0]
    assert "displacement" not in value


def test_colour_is_full_at_the_98th_percentile_and_goes_with_the_root():
    values = np.arange(101.0)
    assert full_colour_size(values) == 98.0
    assert colour_strength(np.array([98.0, -24.5, 0.0, 500.0, np.nan]), 98.0) == pytest.approx(
        [1.0, 0.5, 0.0, 1.0, 0.0]
    )
    assert full_colour_size(np.array([0.0] * 99 + [3.0])) == 3.0  # else a rare push had no colour
    assert full_colour_size(np.zeros(3)) == full_colour_size(np.array([])) == 0.0
    assert (colour_strength(np.zeros(2), 0.0) == 0).all()


def test_the_page_has_the_numbers_of_the_run(run: RunData):
    view = last_view(run)
    trace = read_trace(run.path, run.last_iteration)
    assert view["token"] == trace.columns["token"].tolist()
    assert view["rows_shown"] == view["rows_stored"] == sorted(trace.row_spans)
    assert view["lengths"] == [len(trace.row_columns(row)["token"]) for row in view["rows_shown"]]
    for name, column in view["columns"].items():
        values = trace.columns[name]
        least = float(np.abs(values).max()) * STEP**-LEVELS
        assert decoded(column) == pytest.approx(values, rel=0.005, abs=least), name
    for quantity in available_quantities(trace.columns):
        wanted = full_colour_size(quantity_values(quantity, trace.columns))
        assert view["full"][quantity.name] == pytest.approx(wanted)


def test_pushes_name_the_token_and_who_pushed_it(run: RunData):
    shown = last_view(run)["pushes"]
    pushes = read_pushes(run.path, run.last_iteration)
    assert pushes is not None
    (row, *_), (position, *_) = shown["row"], shown["position"]
    mine = [k for k, at in enumerate(zip(shown["row"], shown["position"], strict=True))
            if at == (row, position)]  # fmt: skip
    push = decoded(shown["push"])
    listed = {(shown["by_row"][k], shown["by_position"][k], round(push[k], 5)) for k in mine}
    assert listed == {(r, p, round(x, 5)) for r, p, x in pushes.on_token(row, position)}
    sizes = [abs(x) for _, _, x in pushes.on_token(row, position)]
    assert sizes == sorted(sizes, reverse=True)
    assert shown["snippets"] == []  # every row is on the page


def test_only_the_words_that_occur_are_embedded(run: RunData):
    panel = tokens.panel(run)
    assert panel is not None
    vocabulary = unpacked(panel.data["vocabulary"])
    assert vocabulary == {str(k): PIECES[k] for k in range(max(map(int, vocabulary)) + 1)}
    assert len(vocabulary) <= 8


def test_first_last_and_evenly_spaced():
    assert tokens.spread_evenly([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert tokens.spread_evenly([1, 2, 9], 5) == [1, 2, 9]
    assert tokens.spread_evenly([1, 2, 3], 1) == [3]


def test_what_does_not_fit_is_left_out_and_said(run: RunData, monkeypatch: pytest.MonkeyPatch):
    one = len(tokens.pack_iteration(run, run.plans[0]).packed)
    monkeypatch.setattr(tokens, "MAX_PANEL_BYTES", 3 * one)
    panel = tokens.panel(run)
    assert panel is not None
    shown = panel.data["iterations"]
    assert [record["iteration"] for record in shown] in ([1, 4], [1, 2, 4], [1, 3, 4])
    assert sum(len(record["packed"]) for record in shown) <= 3 * one
    assert f"{len(shown)} of 4 updates are shown" in panel.body  # type: ignore[operator]
    assert "as many as fit into" in panel.body  # type: ignore[operator]
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "MAX_ITERATIONS", len(shown))
        panel = tokens.panel(run)
        assert panel is not None
        assert f"between, at most {len(shown)}." in panel.body  # type: ignore[operator]
    monkeypatch.setattr(tokens, "MAX_PANEL_BYTES", 1)
    panel = tokens.panel(run)
    assert panel is not None
    assert [record["iteration"] for record in panel.data["iterations"]] == [4]


def test_of_a_large_batch_watched_rows_come_first(run: RunData, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "MAX_TOKENS", 40)
    view = last_view(run)
    pushes = read_pushes(run.path, run.last_iteration)
    assert pushes is not None
    assert pushes.rows <= set(view["rows_shown"]) < set(view["rows_stored"])
    assert sum(view["lengths"]) <= 40
    panel = tokens.panel(run)
    assert panel is not None
    assert "rollouts of these updates are left out" in panel.body  # type: ignore[operator]
    vocabulary = unpacked(panel.data["vocabulary"])
    trace = read_trace(run.path, run.last_iteration)
    assert view["pushes"]["snippets"]
    for key, start, around in view["pushes"]["snippets"]:
        row, position = map(int, key.split(":"))
        assert row not in view["rows_shown"]
        assert around[position - start] == trace.row_columns(row)["token"][position]
        assert all(str(token) in vocabulary for token in around)


def test_one_rollout_is_shown_however_long_it_is(run: RunData, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "MAX_TOKENS", 1)
    assert len(last_view(run)["rows_shown"]) == 1


def test_without_the_monitor_there_are_still_entropy_logprob_and_advantage(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run", microscope="off"))
    panel = tokens.panel(run)
    assert panel is not None
    assert [q["name"] for q in panel.data["quantities"]] == ["entropy", "logprob", "advantage"]
    assert unpacked(panel.data["iterations"][-1]["packed"])["pushes"] is None


def test_without_tokens_the_panel_says_why_and_names_the_command(tmp_path: Path):
    panel = tokens.panel(RunData.read(write_run(tmp_path / "run", microscope="none")))
    assert panel is not None
    assert "store.tokens = true" in panel.caption
    assert "poise replay run --model embedded --iterations 4 " in panel.caption
    assert tokens.panel(RunData.read(write_run(tmp_path / "empty", iterations=0))) is None


def test_a_run_that_stored_no_rollouts_still_shows_tokens(tmp_path: Path):
    view = last_view(RunData.read(write_run(tmp_path / "run", rollouts=False)))
    assert set(view["reward"]) == {None}
    assert set(view["prompts"]) == {None}
    assert view["groups"]


def test_without_a_vocabulary_tokens_have_numbers(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run", pieces=None))
    panel = tokens.panel(run)
    assert panel is not None
    assert unpacked(panel.data["vocabulary"])["4"] == "⟨4⟩"
    assert "no vocabulary.json" in panel.body  # type: ignore[operator]


def test_a_token_that_leaves_no_mark_is_spelled_out():
    texts = Vocabulary(("a", "", "\u200b", "\u00a0x", " \n", "\u202e", "\x1b[31m", "x" * 999))
    assert [texts[k] for k in range(7)] == [
        "a", "⟨1⟩", "⟨U+200B⟩", "⟨U+00A0⟩x", " \n", "⟨U+202E⟩", "␛[31m",
    ]  # fmt: skip
    assert texts[7] == "x" * 200 + "…"
    assert texts[8] == "⟨8⟩"


def test_rows_are_together_and_in_order_whatever_the_file_says(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("row", "position", "token", "advantage", "logprob", "entropy")
    table = {name: [0.0] * 4 for name in names} | {
        "row": [5, 2, 5, 2],
        "position": [1, 0, 0, 1],
        "token": [51, 20, 50, 21],
    }
    (tmp_path / "tokens").mkdir()
    pq.write_table(pa.table(table), tmp_path / "tokens" / "step_00007.parquet")
    trace = read_trace(tmp_path, 7)
    assert {row: trace.row_columns(row)["token"].tolist() for row in trace.row_spans} == {
        2: [20, 21],
        5: [50, 51],
    }
    assert stored_iterations(tmp_path) == [7]


def test_damaged_files_are_told_in_a_line(tmp_path: Path):
    run = write_run(tmp_path / "run")
    (run / "vocabulary.json").write_text("[1")
    with pytest.raises(PoiseError, match=r"vocabulary\.json is damaged"):
        read_vocabulary(run)
    last = stored_iterations(run)[-1]
    (run / "tokens" / f"step_{last:05d}.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(PoiseError, match=r"step_0000\d\.parquet is damaged") as fault:
        read_trace(run, last)
    assert "\n" not in str(fault.value)


def test_tokens_without_a_gradient_of_their_own_are_named(tmp_path: Path):
    path = write_run(tmp_path / "run", tau=0.0)
    assert last_view(RunData.read(path))["without_gradient"] == []
    row = min(read_trace(path, stored_iterations(path)[-1]).row_spans)
    without_pull(path, row, 2)
    view = last_view(RunData.read(path))
    start = sum(view["lengths"][: view["rows_shown"].index(row)])
    assert view["without_gradient"] == [start + 2]
