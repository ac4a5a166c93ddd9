from __future__ import annotations

import base64
import json
import math
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair
import pytest
import vl_convert
from markupsafe import Markup
from report.synthetic import G, P, plan_of, write_run

from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.render import embed_json, pack_json, render
from counterpoise.report.charts.series import ValueAxis, line_chart, moving_average
from counterpoise.report.charts.vega import vega_specification, vega_theme
from counterpoise.report.pages.assemble import split_body
from counterpoise.report.panels import buffer, learning, mosaic, summary, timing
from counterpoise.report.panels.buffer import count_fates, wasted_shares
from counterpoise.report.panels.plans import cross_term
from counterpoise.report.panels.rollouts import choose_examples
from counterpoise.report.panels.summary import format_duration, list_facts
from counterpoise.report.run_data import RunData
from counterpoise.store.stored_rollouts import RolloutLine
from counterpoise.types import Row
from counterpoise.variants import PANELS


def unpacked(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text)))


def rows(*advantages: float) -> list[Row]:
    return [Row(group="g", advantage=A, num_tokens=3, index=i) for i, A in enumerate(advantages)]


@pytest.mark.parametrize(("last", "wanted"), [(1, "01"), (2, "012"), (3, "0123")])
def test_a_short_run_has_whole_iterations_on_its_axis(last: int, wanted: str):
    drawn = line_chart(
        [(i, float(i)) for i in range(1, last + 1)], last, "Success", ValueAxis(".2f")
    )
    assert drawn is not None
    spec = vega_specification(Figure(drawn, "Success")) | {"width": 400, "config": vega_theme()}
    version = ".".join(altair.SCHEMA_VERSION.split(".")[:2])
    svg = vl_convert.vegalite_to_svg(spec, vl_version=version)
    x_axis = re.search(r'aria-label="X-axis.*?role-axis-label.*?</g>', svg, re.DOTALL)
    assert x_axis is not None
    assert re.findall(r">(\d+)</text>", x_axis[0]) == list(wanted)


def axis_of(run: RunData, *iterations: int, evaluated: int | None = None) -> tuple[int, int]:
    evaluations = [] if evaluated is None else [{"iteration": evaluated}]
    metrics = [{"iteration": n, "entropy": 0.5} for n in iterations]
    return replace(run, metrics=metrics, evaluations=evaluations).axis_range


def test_the_axis_of_a_run_that_begins_late_begins_with_it(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run", iterations=1))
    assert axis_of(run, 100, 101, 103) == (100, 103)
    assert axis_of(run, 103) == (102, 103)
    assert axis_of(run, 100, 103, evaluated=0) == (0, 103)
    assert axis_of(run, 1, 2, 3) == axis_of(run, 0, 3) == (0, 3)
    assert axis_of(run) == (0, 1)
    metrics = [run.metrics[0] | {"iteration": n} for n in range(100, 104)]
    panel = learning.panel(replace(run, metrics=metrics, evaluations=[], benchmarks=[]))
    assert panel is not None
    drawn = [figure.chart.to_dict() for figure in panel.body if isinstance(figure, Figure)]
    encodings = [layer["encoding"]["x"] for chart in drawn for layer in chart["layer"]]
    domains = [x["scale"]["domain"] for x in encodings if "scale" in x]
    assert drawn
    assert all(domain == [100, 103] for domain in domains)


def test_every_chart_of_a_report_is_valid(tmp_path: Path):
    """A report creates its charts without this check."""
    run = RunData.read(write_run(tmp_path / "run", tau=0.0, composer="shuffled"))
    panels = [panel for name in PANELS if (panel := PANELS.load(name)(run))]
    figures = [figure for panel in panels for figure in split_body(panel)[1]]
    assert len(figures) == 29
    for figure in figures:
        figure.chart.to_dict(validate=True)


def test_every_rollout_has_one_fate(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run", iterations=6))
    for record in count_fates(run):
        parts = sum(value for name, value in record.items() if name != "iteration")
        assert parts == record["iteration"] * P * G


@pytest.mark.parametrize("tau", [0.0, 0.25])
def test_the_summary_counts_rollouts_without_signal_with_and_without_rb(tmp_path: Path, tau: float):
    run = RunData.read(write_run(tmp_path / "run", iterations=6, tau=tau))
    counted = {what: int(n) for n, what in list_facts(run) if n.isdigit()}
    silent = sum(record["rows_without_signal"] for record in run.metrics)
    assert counted["without signal"] == silent > 0
    waited = ("still waiting", "dropped as surplus", "dropped as too old")
    others = sum(counted.get(what, 0) for what in waited)
    assert counted["used in updates"] + silent + others == counted["rollouts sampled"] == 6 * P * G


def test_balanced_by_reward_a_rollout_without_signal_is_counted_once(tmp_path: Path):
    """Rollouts without signal wait too: they are not yet used, and may be dropped as surplus."""
    run = RunData.read(write_run(tmp_path / "run", iterations=6, tau=0.5, sign="reward"))
    counted = {what: int(n) for n, what in list_facts(run) if n.isdigit()}
    used = sum(A != 0 for plan in run.plans for A in plan["advantage"])
    assert counted["used in updates"] == used > 0
    assert counted["dropped as surplus"] > 0
    waiting, sampled = counted["still waiting"], counted["rollouts sampled"]
    assert wasted_shares(run)[-1] == (6, pytest.approx((sampled - waiting - used) / sampled))
    without_rows = replace(run, plans=[])  # store.report = false
    assert "used in updates" not in [what for _, what in list_facts(without_rows)]
    assert wasted_shares(without_rows) == []


def fates_shown(run: RunData, **options: Any) -> list[str]:
    changed = {name: replace(getattr(run.config, name), **new) for name, new in options.items()}
    panel = buffer.panel(replace(run, config=replace(run.config, **changed)))
    assert panel is not None
    return [meaning for _, meaning in panel.body[-1].keys]  # type: ignore[index,union-attr]


def test_the_fates_of_a_run_are_those_that_it_can_have(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run", tau=0.0))
    used, replaced = "used in an update", "no signal: replaced by another group"
    silent = "no signal: all rewards of its group are equal"
    assert fates_shown(run, sample={"refills": 2}) == [used, replaced]
    dropping = fates_shown(run, sample={"refills": 2}, batch={"drop_silent": True})
    assert dropping == [used, silent, replaced]
    by_reward = fates_shown(run, balance={"tau": 0.25, "sign": "reward"})
    assert silent not in by_reward
    assert by_reward[-1] == "not scored: no reward was given"


def test_the_summary_says_how_many_steps_a_batch_takes(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run"))

    def told(**batch: Any) -> str:
        config = replace(run.config, batch=replace(run.config.batch, **batch))
        return " ".join(str(summary.panel(replace(run, config=config)).body).split())

    assert "divides a batch into 2 optimizer steps, with" in told()
    assert "divides a batch into 1 optimizer step, with" in told(steps=1)
    assert "divides a batch into at most 2 optimizer steps, with" in told(drop_silent=True)
    by_rows = "as many optimizer steps as 8 rows with signal each can fill, with"
    assert f"divides a batch into {by_rows}" in told(rows_per_step=8)


def test_areas_over_a_single_iteration_are_bars(tmp_path: Path):
    """An area has no width there: the charts were empty."""
    run = RunData.read(write_run(tmp_path / "run", iterations=1))
    for module in (buffer, timing):
        panel = module.panel(run)
        assert panel is not None
        for figure in panel.body[: 2 if module is buffer else 1]:  # type: ignore[index]
            marks = [layer["mark"]["type"] for layer in figure.chart.to_dict()["layer"]]
            assert "bar" in marks
            assert "area" not in marks


def test_cancellation_of_a_group_whole_halved_and_sorted_by_sign():
    batch = rows(1.0, 1.0, -1.0, -1.0)
    assert cross_term(plan_of("whole", batch, (0, 1, 2, 3))) == -1.0
    assert cross_term(plan_of("shuffled", batch, (0, 2), (1, 3))) == -1.0
    assert cross_term(plan_of("shuffled", batch, (0, 1, 2), (3,))) == pytest.approx(-0.5)
    assert cross_term(plan_of("by_sign", batch, (0, 1), (2, 3))) == 1.0
    assert cross_term(plan_of("whole", rows(0.0, 0.0), (0, 1))) is None


def test_a_compact_plan_says_the_step_of_every_row():
    plan = mosaic.compact_plan(plan_of("shuffled", rows(1.0, -0.5, -0.5), (2, 0), (1,)))
    assert plan["step"] == [0, 1, 0]
    assert plan["steps"] == 2
    assert plan["groups"] == ["g"]
    assert plan["advantage"] == [1.0, -0.5, -0.5]
    assert plan["describe"]["split_groups"] == 1


def test_the_mosaic_knows_updates_and_iterations_without_one(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run", iterations=6))
    drawn = mosaic.panel(run)
    assert drawn is not None
    updates = {plan["iteration"] for plan in run.plans}
    assert 0 < len(updates) < 6
    for record in drawn.data["iterations"]:
        assert ("plan" in record) == (record["iteration"] in updates)
        assert ("waiting" in record) == (record["iteration"] not in updates)
    # Stopped before its first line of metrics.jsonl: the page's script had no iteration to show.
    assert mosaic.panel(replace(run, metrics=[])) is None


def test_excerpts_name_the_rows_of_the_plan(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run", response="x" * 500))
    plan = run.plans[-1]
    texts = unpacked(mosaic.pack_excerpts(run)[plan["iteration"]])
    assert texts["responses"] == ["x" * mosaic.MAX_EXCERPT_CHARACTERS + "…"] * len(plan["group"])
    assert [reward > 0 for reward in texts["rewards"]] == [A > 0 for A in plan["advantage"]]


def test_excerpts_are_for_the_last_updates_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = RunData.read(write_run(tmp_path / "run", iterations=6, tau=0.0))
    monkeypatch.setattr(mosaic, "MAX_TEXT_UPDATES", 2)
    assert sorted(mosaic.pack_excerpts(run)) == [5, 6]
    panel = mosaic.panel(run)
    assert panel is not None
    assert "4 of 6 updates show no texts" in panel.body  # type: ignore[operator]
    monkeypatch.setattr(mosaic, "MAX_TEXT_BYTES", 10)
    assert mosaic.pack_excerpts(run) == {}
    panel = mosaic.panel(run)
    assert panel is not None
    assert "6 of 6 updates show no texts" in panel.body  # type: ignore[operator]  # but were stored


def test_a_large_run_stays_small():
    batch = [
        Row(
            group=f"1:dataset/train/{i // 8}", advantage=(-1.0) ** i, num_tokens=i % 97, index=i % 8
        )
        for i in range(1024)
    ]
    steps = [tuple(range(s, 1024, 4)) for s in range(4)]
    assert len(pack_json(mosaic.compact_plan(plan_of("shuffled", batch, *steps)))) < 6_000


def test_rollouts_are_shown_in_pairs_where_there_are_both():
    def text(group: str, index: int, reward: float) -> RolloutLine:
        return RolloutLine(group, index, "?", "!", "3", reward, 5)

    a = [text("a", 0, 0.0), text("a", 1, 0.0)]
    b = [text("b", 0, 0.0), text("b", 1, 1.0), text("b", 2, 1.0)]
    assert choose_examples((*a, *b)) == [(b[1], b[0]), (a[0],)]


def test_graded_rewards_are_high_or_low_and_not_right_or_wrong(tmp_path: Path):
    run = RunData.read(write_run(tmp_path / "run", iterations=1))
    by_group = {
        "a": [0.2, 1.2, 0.0, 1.2], "b": [0.2, 0.2], "c": [math.nan, -0.5, 0.3],
    }  # fmt: skip
    texts = tuple(
        RolloutLine(group, index, group, "text", "", reward, 3)
        for group, rewards in by_group.items()
        for index, reward in enumerate(rewards)
    )
    chosen = choose_examples(texts, is_graded=True)
    assert [[each.index for each in pair] for pair in chosen] == [[1, 2], [2, 1], [0]]
    graded = replace(run, metrics=[run.metrics[0] | {"reward": 0.7}], _texts={1: texts})
    assert graded.is_graded
    panel = PANELS.load("rollouts")(graded)
    words = re.sub(r"<.*?>|\s+", " ", str(panel.body))
    assert "right" not in words
    assert "wrong" not in panel.caption
    assert " ".join(words.split()).count("high reward · reward") == 2
    assert "low reward · reward -0.5" in " ".join(words.split())


def test_smoothing_keeps_a_constant_and_cuts_its_window_at_the_ends():
    assert moving_average([2.0] * 10) == ([2.0] * 10, 3)
    assert moving_average([0.0, 3.0, 6.0])[0] == [1.5, 3.0, 4.5]
    assert moving_average([0.0] * 400)[1] == 25


def test_a_line_passes_over_iterations_without_a_number():
    drawn = line_chart(
        [(1, 0.5), (2, None), (3, 0.25), (4, math.nan)], 3, "Entropy", ValueAxis(".2f")
    )
    assert drawn is not None
    (values,) = drawn.to_dict()["datasets"].values()
    assert list(values) == [{"iteration": 1, "value": 0.5}, {"iteration": 3, "value": 0.25}]
    assert "0.5 in iteration 1, 0.25 in iteration 3" in drawn.description
    assert line_chart([(1, None)], 1, "Entropy", ValueAxis(".2f")) is None


def test_duration():
    assert [format_duration(s) for s in (8.2, 75, 9000)] == ["8 s", "1 min 15 s", "2 h 30 min"]


def test_embedded_json_cannot_close_its_element():
    value = {"text": "</script><!--", "loss": math.nan, "deep": [math.inf, {"x": 1.5}]}
    text = embed_json(value)
    assert "<" not in text
    assert json.loads(text) == {"text": "</script><!--", "loss": None, "deep": [None, {"x": 1.5}]}
    assert unpacked(pack_json(value)) == json.loads(text)


def test_templates_escape_strings_and_keep_markup():
    assert "&lt;b&gt;" in render(
        "configuration.html", changed=[], toml="<b>", versions=[("x", Markup("<i>"))]
    )
