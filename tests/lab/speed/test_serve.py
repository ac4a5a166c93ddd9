"""The made-up run is one that the store could have written, and the server reads all of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from counterpoise.errors import PoiseError
from counterpoise.lab.speed.made_up_run import (
    DEFAULT_RUN_SIZE,
    NEEDLE,
    NEEDLE_EVERY,
    RunSize,
    write_made_up_run,
)
from counterpoise.lab.speed.serve import Measurements, RequestTiming, as_table, measure_in
from counterpoise.report.traces import read_trace, read_vocabulary
from counterpoise.serve.app import make_app
from counterpoise.serve.index.process import IndexInThisProcess
from counterpoise.serve.library import RunLibrary
from counterpoise.store.folder import RunFolder
from counterpoise.store.rollout_files import read_groups


@pytest.fixture
def small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.speed.made_up_run.POOL", 64)


def test_a_size_is_three_numbers() -> None:
    assert RunSize.parse("1,000 x 1024 x 300") == RunSize(1000, 1024, 300)
    assert RunSize.parse(DEFAULT_RUN_SIZE).iterations == 100
    for text in ("", "3x4", "3x4x5", "ax8x1", "0x8x1"):
        with pytest.raises(PoiseError, match="iterations x rollouts x tokens"):
            RunSize.parse(text)


def test_the_made_up_run_is_read_by_the_stores_readers(tmp_path: Path, small_pool: None) -> None:
    run = tmp_path / "run"
    write_made_up_run(run, RunSize(2, 40, 20))
    write_made_up_run(run, RunSize(1, 40, 20))  # appends
    folder = RunFolder(run)
    assert [record["iteration"] for record in folder.read("metrics")] == [1, 2, 3]
    for plan in folder.read("plans"):
        groups = read_groups(run / "rollouts" / f"step_{plan['iteration']:05d}.jsonl")
        assert [len(group.rollouts) for group in groups] == [8] * 5
        rollouts = {
            (group.key, index): rollout
            for group in groups
            for index, rollout in enumerate(group.rollouts)
        }
        trace = read_trace(run, plan["iteration"])
        for row, (group, index) in enumerate(zip(plan["group"], plan["index"], strict=True)):
            rollout = rollouts[plan["groups"][group], index]
            assert trace.row_columns(row)["token"].tolist() == rollout.response_tokens.tolist()
            assert plan["tokens"][row] == len(rollout.sampled_logprobs)
            text = "".join(read_vocabulary(run)[token] for token in rollout.response_tokens)
            assert rollout.response.removesuffix(f" {NEEDLE}").endswith(text)
        dropped = next(
            record["no_signal"]
            for record in folder.read("drops")
            if record["iteration"] == plan["iteration"]
        )
        assert len(plan["groups"]) + len(dropped) == 5


def test_the_server_counts_what_was_planted(tmp_path: Path, small_pool: None) -> None:
    write_made_up_run(tmp_path / "runs" / "run", RunSize(5, 40, 20))
    library = RunLibrary(
        [tmp_path / "runs"], tmp_path / "cache", IndexInThisProcess(tmp_path / "cache"), 60
    )
    with TestClient(make_app(library)) as client:
        page = client.get("/runs/run/rollouts", params={"search": NEEDLE}).json()
        planted = [serial for serial in range(40, 240) if serial % NEEDLE_EVERY == 0]
        assert page["total"] == len(planted) == 2
        assert client.get("/runs/run/rollouts").json()["total"] == 200


def test_bars_are_of_the_slowest() -> None:
    measured = Measurements(
        pages={"a": RequestTiming(0.2, 0.1), "b": RequestTiming(1.5, 0.1)},
        filters={"c": RequestTiming(0.3, 0.1)},
        searches={"d": RequestTiming(2.9, 3.0)},
        news=[0.5, 2.5],
        memory={"server": 4e8, "index process": 5e8},
        doubled=1,
    )
    table = as_table(measured, RunSize(1, 8, 1))
    assert [bar.passed for bar in table.bars] == [False, True, True, False, True, False]
    assert ("search", "d", "2.900 s", "3.000 s") in table.rows


@pytest.mark.slow
def test_a_whole_measurement(tmp_path: Path, small_pool: None) -> None:
    setup = SimpleNamespace(log=lambda text: None)
    measured = measure_in(tmp_path, RunSize(12, 64, 20), setup)
    assert measured.lost == measured.doubled == 0
    assert measured.news
    assert set(measured.memory) == {"server", "index process"}
    assert all(timing.seconds > 0 for timing in measured.searches.values())
