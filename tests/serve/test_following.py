"""Runs that are being trained: what is new is read, and only that; states; events."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from report.synthetic import write_run
from serve.served import IndexInThisProcess, get, serve

from counterpoise.files import folder_lock
from counterpoise.serve import discover, run_state
from counterpoise.serve.app import make_app
from counterpoise.serve.discover import find_runs
from counterpoise.serve.events import POLL_SECONDS, EventFeed
from counterpoise.serve.library import RunLibrary
from counterpoise.serve.log_tail import LogTail
from counterpoise.serve.run_reader import RunReader
from counterpoise.store.folder import RunFolder


def tail_of(path: Path) -> tuple[LogTail, list[int]]:
    seen: list[int] = []
    tail = LogTail(path, lambda _: True, lambda record: seen.append(record["iteration"]))
    tail.on_restart = seen.clear
    return tail, seen


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_tail_reads_each_line_once_and_a_cut_line_when_it_is_whole(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    tail, seen = tail_of(path)
    assert tail.poll() is False
    append(path, '{"schema": 1, "iteration": 1}\n{"iterat')
    assert tail.poll() is True
    assert seen == [1]
    assert tail.poll() is False
    append(path, 'ion": 2, "x": "y"}\n')
    assert tail.poll() is True
    assert seen == [1, 2]
    assert tail.read_record(2) == {"iteration": 2, "x": "y"}
    assert tail.read_record(3) is None
    assert tail.problem is None


def test_a_repeated_iteration_replaces_all_of_the_earlier_line(tmp_path: Path):
    path = write_run(tmp_path / "run", 0, evaluations=False) / "metrics.jsonl"
    append(path, '{"iteration": 1, "success": 0.5, "loss": NaN, "kl": 0.1}\n')
    append(path, '{"iteration": 2, "success": 0.5}\n{"iteration": 1, "success": 0.75}\n')
    reader = RunReader("run", path.parent, [tmp_path])
    reader.refresh(None)
    assert list(reader.iterations) == [1, 2]
    assert list(reader.columns["success"]) == [0.75, 0.5]
    assert all(map(math.isnan, reader.columns["kl"]))
    assert reader.not_finite == {"loss": set()}


def test_the_headline_is_of_the_first_sampling_setting(tmp_path: Path):
    run = write_run(tmp_path / "run", 0, evaluations=False)
    for iteration, top_p, mean in ((0, 1.0, 0.1), (0, 0.95, 0.5), (8, 1.0, 0.2), (8, 0.95, 0.6)):
        record = {"iteration": iteration, "temperature": 1.0, "top_p": top_p, "mean": mean}
        append(run / "evaluations.jsonl", json.dumps(record) + "\n")
    reader = RunReader("run", run, [tmp_path])
    reader.refresh(None)
    assert reader.summary()["headline"] == {"label": "held-out success", "value": 0.2}


def test_evaluations_of_graded_rewards_lead_with_the_mean_reward(tmp_path: Path):
    run = write_run(tmp_path / "run", 0, evaluations=False)
    scores = {"mean": 1.0, "low": 0.9, "high": 1.0}
    graded = {"iteration": 0, **scores, "reward": -0.25, "reward_low": -0.5, "reward_high": 0.0}
    binary = {"iteration": 8, "mean": 0.5, "low": 0.4, "high": 0.6, "reward": 0.5}
    for log, fields in (("evaluations", {}), ("benchmarks", {"benchmark": "theirs"})):
        for record in (graded, binary):
            append(run / f"{log}.jsonl", json.dumps(record | fields) + "\n")
    append(run / "benchmarks.jsonl", json.dumps(binary | {"benchmark": "other"}) + "\n")
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        (listed,) = get(client, "/")["runs"]
        assert listed["headline"] == {"label": "held-out reward", "value": 0.5}
        view = get(client, "/runs/run")
    names = ("quantity", "headline", "headline_low", "headline_high")
    shown = [[each[name] for name in names] for each in view["evaluations"]]
    assert shown == [["reward", -0.25, -0.5, 0.0], ["reward", 0.5, 0.4, 0.6]]
    shown_benchmarks = [[each[name] for name in names] for each in view["benchmarks"]]
    assert shown_benchmarks == [*shown, ["success", 0.5, 0.4, 0.6]]


def test_success_is_not_called_reward_where_no_reward_is_stored(tmp_path: Path):
    run = write_run(tmp_path / "run", 0, evaluations=False)
    append(run / "metrics.jsonl", '{"iteration": 1, "reward": 0.3, "graded": true}\n')
    append(run / "evaluations.jsonl", '{"iteration": 1, "mean": 0.5, "low": 0.4, "high": 0.6}\n')
    reader = RunReader("run", run, [tmp_path])
    reader.refresh(None)
    assert reader.summary()["headline"] == {"label": "held-out success", "value": 0.5}


def test_an_alert_counts_one_as_one(tmp_path: Path):
    run = write_run(tmp_path / "run", 0, evaluations=False)
    append(run / "metrics.jsonl", '{"iteration": 1, "unscored": 1, "skipped_steps": 1200}\n')
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        alerts = [alert["text"] for alert in get(client, "/runs/run")["alerts"]]
    assert "1 rollout got no reward" in alerts
    assert "1,200 optimizer steps skipped: no signal, or not finite" in alerts


def test_a_tail_starts_again_where_the_log_was_cut_or_replaced(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    tail, seen = tail_of(path)
    append(path, "".join(f'{{"iteration": {number}}}\n' for number in range(1, 5)))
    tail.poll()
    path.write_text('{"iteration": 1}\n')
    assert tail.poll() is True
    assert (seen, list(tail.spans)) == ([1], [1])
    other = tmp_path / "other"
    other.write_text("".join(f'{{"iteration": {number}}}\n' for number in range(7, 12)))
    other.replace(path)
    tail.poll()
    assert seen == [7, 8, 9, 10, 11]
    path.unlink()
    assert tail.poll() is True
    assert seen == []


def test_requests_at_the_same_time_all_see_the_whole_log(tmp_path: Path):
    path = tmp_path / "plans.jsonl"
    text = "y" * 20_000
    append(
        path, "".join(f'{{"schema": 1, "iteration": {n}, "x": "{text}"}}\n' for n in range(1000))
    )
    tail = LogTail(path, lambda _: True)

    def sees_last_line(_: int) -> bool:
        tail.poll()
        return tail.read_record(999) is not None

    with ThreadPoolExecutor(3) as requests:
        assert list(requests.map(sees_last_line, range(3))) == [True] * 3


def test_a_read_that_failed_once_is_made_up_for(tmp_path: Path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    tail, seen = tail_of(path)
    append(path, '{"iteration": 1}\n')
    tail.poll()
    append(path, '{"iteration": 2}\n')
    for function in ("open", "stat"):
        with monkeypatch.context() as patch:

            def fail(*_: object, **__: object) -> None:
                raise OSError(errno.ESTALE, "Stale file handle")

            patch.setattr(Path, function, fail)
            assert [tail.poll(), tail.poll()] == [function == "open", False]  # told once
            assert tail.problem == "metrics.jsonl cannot be read: Stale file handle"
    assert tail.poll() is True
    assert (seen, tail.problem) == ([1, 2], None)


def test_a_folder_that_may_not_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch):
    for name in ("mine", "theirs"):
        write_run(tmp_path / name, 1)
    stat = Path.stat

    def stat_mine(path: Path, **options: bool) -> os.stat_result:
        if path.parent.name == "theirs":
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", stat_mine)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        runs = {each["name"]: each for each in get(client, "/")["runs"]}
    assert runs["mine"]["problem"] is None
    assert runs["theirs"]["problem"] == "config.toml cannot be read: Permission denied"


def test_long_lines_are_found_without_parsing_them(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("counterpoise.serve.log_tail.CHUNK_BYTES", 64)
    path = tmp_path / "plans.jsonl"
    records = [{"schema": 1, "iteration": number, "x": "ü" * 90} for number in range(1, 9)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    tail = LogTail(path, lambda _: True)
    tail.poll()
    assert [tail.read_record(number) for number in range(1, 9)] == records


def test_states_of_a_run(tmp_path: Path):
    run = write_run(tmp_path / "run", 3)
    folder = RunFolder(run)

    def state(**changed: object) -> str:
        facts = {"last_iteration": 3, "planned_iterations": 9, "updated": 0.0, "is_torn": False}
        return run_state.run_state(run, **{**facts, **changed}, locks=run_state.locked_inodes())

    assert state() == "failed"
    (folder.checkpoints / "iteration_00003").mkdir(parents=True)
    assert state() == "stopped"
    (run / "finished.json").write_text('{"iterations": 9}')
    assert state() == "finished"
    assert state(is_torn=True) == "torn"
    (run / "finished.json").write_text("{torn")
    assert state() == "stopped"
    with folder_lock(run):
        assert state() == "training"
        assert state(is_torn=True) == "training"
    assert state() == "stopped"


def test_without_a_list_of_locks_recent_files_mean_training(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(run_state, "LOCK_LIST", tmp_path / "none")
    assert run_state.locked_inodes() is None
    assert run_state.is_locked(tmp_path, None, time.time()) is True
    assert run_state.is_locked(tmp_path, None, time.time() - 999) is False


def test_one_listener_too_many_is_refused_for_good(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("counterpoise.serve.events.MOST_LISTENERS", 0)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        assert client.get("/events").status_code == 503  # a browser tries again after a 200 only


def test_looking_at_a_run_never_takes_its_lock(tmp_path: Path):
    run = write_run(tmp_path / "run", 1)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        for _ in range(20):
            client.library._refreshed = float("-inf")
            get(client, "/")
            with folder_lock(run):  # as a run that starts at this moment does
                pass


def test_runs_are_found_below_the_folders_and_named_by_their_path(tmp_path: Path):
    for name in ("out/a", "out/sweep/seed-1", "out/sweep/seed-2", "more/a"):
        write_run(tmp_path / name, 0)
    (tmp_path / "out" / "a" / "checkpoints" / "inner").mkdir(parents=True)
    (tmp_path / "out" / ".hidden").mkdir()
    runs = find_runs([tmp_path / "out", tmp_path / "more", tmp_path / "out" / "a"]).runs
    assert {name: path.relative_to(tmp_path).as_posix() for name, path in runs.items()} == {
        "a": "out/a",
        "sweep/seed-1": "out/sweep/seed-1",
        "sweep/seed-2": "out/sweep/seed-2",
        "a~2": "more/a",
    }


def test_runs_are_found_at_any_depth_and_what_is_left_out_is_told(tmp_path: Path, monkeypatch):
    served = tmp_path / "served"
    write_run(served / "a/b/c/d/e/f/run", 0)
    (served / "a/b/circle").symlink_to(served / "a")
    assert list(find_runs([served]).runs) == ["a/b/c/d/e/f/run"]
    assert find_runs([served]).describe_omissions() == []
    write_run(tmp_path / "elsewhere", 0)
    for name in ("first", "second"):
        (served / name).symlink_to(tmp_path / "elsewhere")
    scandir = os.scandir

    def refuse(folder: Path) -> Any:
        if Path(folder).name == "f":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr("os.scandir", refuse)
    cache = tmp_path / "cache"
    with serve(served, cache=cache) as client:
        answer = get(client, "/")
        assert answer["runs"] == []
        unreadable, links = answer["omissions"]
        assert unreadable.endswith(f"are not searched: {served / 'a/b/c/d/e/f'}.")
        assert links.startswith("Links that lead out of the served folders are not followed: ")
        assert links.endswith(" and 1 more.")
    monkeypatch.setattr("os.scandir", scandir)
    monkeypatch.setattr(discover, "MOST_FOLDERS", 7)
    write_run(served / "z", 0)
    search = find_runs([served])
    assert list(search.runs) == ["z"]  # the nearest are searched first
    assert "more than 7 folders" in search.describe_omissions()[0]


def test_a_growing_run_is_told_at_the_next_look_at_it(tmp_path: Path, monkeypatch):
    """A look that fails is followed by another."""
    assert POLL_SECONDS <= 0.5  # between two looks
    run = write_run(tmp_path / "run", 2)
    folder = RunFolder(run)
    cache = tmp_path / "cache"
    library = RunLibrary([tmp_path], cache, IndexInThisProcess(cache))
    feed = EventFeed(library)
    make_app(library)
    looks: list[int] = []
    find_changes = feed.find_changes
    monkeypatch.setattr(feed, "find_changes", lambda: looks.append(1) or find_changes())

    class Connected:
        async def is_disconnected(self) -> bool:
            return False

    async def listen() -> tuple[list[dict], int]:
        stream = feed.stream(Connected())
        assert await anext(stream) == "retry: 1000\n\n"
        watcher = asyncio.create_task(feed.watch())
        events = [json.loads((await anext(stream)).removeprefix("data: "))]
        refresh, faults = library.refresh, [OSError("a disk that is away for a moment")]

        def fail_once() -> set[str]:
            if faults:
                raise faults.pop()
            return refresh()

        monkeypatch.setattr(library, "refresh", fail_once)
        looks.clear()
        folder.append("metrics", {"iteration": 3, "success": 0.75})
        events.append(json.loads((await anext(stream)).removeprefix("data: ")))
        looks_needed = len(looks)
        write_run(tmp_path / "new", 1)
        events.append(
            json.loads((await asyncio.wait_for(anext(stream), 300)).removeprefix("data: "))
        )
        watcher.cancel()
        await stream.aclose()
        return events, looks_needed

    events, looks_needed = asyncio.run(listen())
    library.close()
    assert events[0] == {"run": "run", "iterations": 2, "state": "failed"}
    assert events[1] == {"run": "run", "iterations": 3, "state": "failed"}
    assert (events[2]["run"], events[2]["iterations"]) == ("new", 1)
    assert looks_needed <= 3  # one may have been under way, and one failed


def test_a_listener_that_does_not_read_loses_old_events_only(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("counterpoise.serve.events.MOST_WAITING", 3)
    library = RunLibrary([tmp_path], tmp_path / "cache", IndexInThisProcess(tmp_path / "cache"))
    feed = EventFeed(library)

    class Connected:
        async def is_disconnected(self) -> bool:
            return False

    async def listen() -> list[str]:
        stream = feed.stream(Connected())
        await anext(stream)
        for number in range(10):
            feed._tell(f"data: {number}\n\n")
        received = [await anext(stream) for _ in range(3)]
        await stream.aclose()
        assert not feed._listeners
        return received

    assert asyncio.run(listen()) == [f"data: {number}\n\n" for number in (7, 8, 9)]


@pytest.mark.parametrize("seconds", [0.0, 9.0])
def test_a_request_sees_an_iteration_that_was_just_written(tmp_path: Path, seconds: float):
    run = write_run(tmp_path / "run", 2)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        assert get(client, "/runs/run")["iterations"] == 2
        RunFolder(run).append("metrics", {"iteration": 3, "success": 0.75})
        client.library._refreshed -= seconds or 0.5
        view = get(client, "/runs/run")
        assert view["iterations"] == 3
        assert view["metrics"]["success"][-1] == 0.75
        assert view["metrics"]["loss"][-1] is None
