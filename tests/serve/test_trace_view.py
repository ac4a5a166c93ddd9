"""Held-out answers on pages: the view of `poise serve` and the panel of the report."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from serve.served import get, serve
from small_run import small_config

from counterpoise.loop import train
from counterpoise.report.panels.heldout_answers import panel
from counterpoise.report.probe_trace.influence import trace_run
from counterpoise.report.probe_trace.over_time import trace_over_time
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.report.run_data import RunData

SETS = (
    "monitor.probe=12",
    "monitor.probe_every=1",
    "task.heldout=6",
    "task.size=6",
    "evaluate.prompts=0",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("traced")
    train(small_config(base, *SETS), base / "runs" / "traced")
    train(small_config(base, "loop.iterations=1", "evaluate.prompts=0"), base / "runs" / "blind")
    return base / "runs"


def test_prompts_add_up_to_their_influence_on_the_run(runs: Path) -> None:
    probed_run = ProbedRun.open(runs / "traced")
    over_time, whole = trace_over_time(probed_run, shown=99), trace_run(probed_run)
    prompts = {p.prompt_id: p for p in (*over_time.raising, *over_time.lowering)}
    assert prompts.keys() == {name for name, x in whole.prompts.items() if x.total}
    for name, prompt in prompts.items():
        assert prompt.total == pytest.approx(whole.prompts[name].total)
        assert prompt.raising == whole.prompts[name].raising
        assert prompt.moving == whole.prompts[name].updates
    latest = trace_over_time(probed_run, max_updates=1)
    assert (len(latest.updates), latest.left_out) == (1, len(over_time.updates) - 1)


def test_a_prompt_with_several_groups_in_an_update_is_counted_once(runs: Path) -> None:
    probed_run = ProbedRun.open(runs / "traced")
    all_one = replace(probed_run, prompt_of_group=dict.fromkeys(probed_run.prompt_of_group, "p"))
    (whole,) = trace_run(all_one).prompts.values()
    over_time = trace_over_time(all_one)
    (prompt,) = (*over_time.raising, *over_time.lowering)
    assert [update.iteration for update in prompt.updates] == [1, 2, 3, 4]
    assert (prompt.moving, prompt.raising) == (whole.updates, whole.raising)
    assert prompt.total == pytest.approx(whole.total)


def test_the_view_leads_to_the_groups(runs: Path, tmp_path: Path) -> None:
    with serve(runs, cache=tmp_path) as client:
        view = get(client, "/runs/traced/trace")
        assert view["iterations"] == [1, 2, 3, 4]
        assert len(view["right"]) == len(view["wrong"]) == 4
        assert view["through"] == "the output layer"
        assert view["prompts"] >= len(view["raising"]) + len(view["lowering"]) > 0
        for prompt in view["raising"]:
            assert prompt["total"] > 0
            for update in prompt["updates"]:
                shown = get(client, update["place"])
                assert shown["group"].endswith(prompt["prompt_id"])
        refused = client.get("/runs/blind/trace")
        assert refused.status_code == 404
        assert "monitor.probe=32" in refused.json()["problem"]


def test_a_run_that_measured_no_update_says_so(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "traced", tmp_path / "runs" / "unmeasured")
    for name in ("probes", "probe_rows"):
        shutil.rmtree(tmp_path / "runs" / "unmeasured" / name)
    config = tmp_path / "runs" / "unmeasured" / "config.toml"
    config.write_text(config.read_text().replace("probe_every = 1", "probe_every = 0"))
    with serve(tmp_path / "runs", cache=tmp_path) as client:
        refused = client.get("/runs/unmeasured/trace")
        assert refused.status_code == 404
        assert refused.json()["problem"] == (
            "unmeasured measured no update on its held-out answers: train with --set "
            "monitor.probe_every=1"
        )


def test_the_panel_has_a_bar_for_every_update(runs: Path) -> None:
    shown = panel(RunData.read(runs / "traced"))
    assert shown is not None
    trace = trace_over_time(ProbedRun.open(runs / "traced"), 8)
    bars = sum(len(prompt.updates) for prompt in (*trace.raising, *trace.lowering))
    assert str(shown.after).count("data-iteration=") == bars > 0
    assert panel(RunData.read(runs / "blind")) is None
