"""The made-up run is one that the store could have written, and the server reads all of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from serve.served import IndexInThisProcess
from starlette.testclient import TestClient

from counterpoise.errors import PoiseError
from counterpoise.lab.speed import serve
from counterpoise.lab.speed.made_up_run import (
    DEFAULT_RUN_SIZE,
    NEEDLE,
    NEEDLE_EVERY,
    RunSize,
    write_made_up_run,
)
from counterpoise.lab.speed.serve import (
    Measurements,
    RequestTiming,
    RunEvent,
    as_table,
    count_lost_and_doubled,
    measure_delays,
    measure_in,
)
from counterpoise.report.traces import read_trace, read_vocabulary
from counterpoise.serve.app import make_app
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


def test_limits_are_checked_on_the_slowest() -> None:
    measured = Measurements(
        pages={"a": RequestTiming(0.2, 0.1), "b": RequestTiming(1.5, 0.1)},
        filters={"c": RequestTiming(0.3, 0.1)},
        searches={"d": RequestTiming(2.9, 3.0)},
        news=[0.5, 2.5],
        memory={"server": 4e8, "child processes": 5e8},
        doubled=1,
    )
    table = as_table(measured, RunSize(1, 8, 1))
    assert [check.passed for check in table.limit_checks] == [False, True, True, False, True, False]
    assert ("search", "d", "2.900 s", "3.000 s") in table.rows


def test_a_delay_is_measured_from_the_iterations_own_commit() -> None:
    commits = {11: 100.0, 12: 101.0, 13: 102.0, 14: 103.0}
    # A server five seconds late, though a line came every second; one event names two iterations.
    events = [RunEvent(99.0, 10), RunEvent(105.0, 11), RunEvent(107.0, 13), RunEvent(108.0, 13)]
    assert measure_delays(commits, events, until=113.0) == ([5.0, 6.0, 5.0, 10.0], 1)
    assert measure_delays(commits, [], until=113.0) == ([13.0, 12.0, 11.0, 10.0], 4)


def test_no_event_at_all_misses_the_limit() -> None:
    timing = {"a": RequestTiming(0.1, 0.1)}
    table = as_table(Measurements(timing, timing, timing), RunSize(1, 8, 1))
    missed = [check.name for check in table.limit_checks if not check.passed]
    assert missed == ["a new iteration is announced after"]


@pytest.mark.parametrize(
    ("serials", "total", "expected"),
    [
        ([100, 200, 300], 320, (0, 0)),
        ([100, 200], 320, (0, 0)),  # 300 is of an appended iteration, perhaps not written yet
        ([], 320, (2, 0)),  # a search that finds nothing
        ([100], 320, (1, 0)),  # one that stops early
        ([100, 300], 320, (1, 0)),
        ([100, 200, 200, 250], 320, (0, 2)),  # 250 has no planted word
        ([100, 200], 310, (10, 0)),
        ([100, 200], 321, (0, 1)),
    ],
)
def test_rows_that_are_missing_or_too_many_are_counted(
    serials: list[int], total: int, expected: tuple[int, int]
) -> None:
    assert count_lost_and_doubled(serials, total, RunSize(5, 40, 20), appended=3) == expected


@pytest.mark.slow
def test_a_whole_measurement(
    tmp_path: Path, small_pool: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "EVENT_LIMIT_SECONDS", 600.0)
    setup = SimpleNamespace(log=lambda text: None)
    measured = measure_in(tmp_path, RunSize(12, 64, 20), setup)
    assert measured.lost == measured.doubled == 0
    assert len(measured.news) == 6
    assert measured.unannounced == 0
    assert min(measured.news) > -0.1
    assert set(measured.memory) == {"server", "child processes"}
    assert all(timing.seconds > 0 for timing in measured.searches.values())
