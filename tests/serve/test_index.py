"""The index: filters as a plain loop has them, no row lost or doubled, pages that stay in place."""

from __future__ import annotations

import json
import math
import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.synthetic import write_run
from serve.served import IndexInThisProcess, all_rows, get, line, places, serve, write_rollouts

from counterpoise.serve.index import segments, table, writer
from counterpoise.serve.index.manifest import Manifest, index_folder, read_manifest, write_manifest
from counterpoise.serve.index.process import IndexProcess, run_loop
from counterpoise.serve.index.query import RolloutQuery, RolloutSearch, parse_search
from counterpoise.serve.index.table import RolloutTable
from counterpoise.serve.index.writer import IndexWriter
from counterpoise.store.folder import RunFolder

WORDS = ("alpha", "Beta", "GAMMA", "delta", "Ünï", "straße")


def made_up(run: Path, iterations: int = 6, groups: int = 4, size: int = 3) -> list[dict[str, Any]]:
    """A run with random texts, rewards, a plan and drops; returns what every rollout should be."""
    rng = np.random.default_rng(5)
    expected = []
    for iteration in range(1, iterations + 1):
        lines, plan_rows, dropped = [], [], {}
        for number in range(groups):
            group = f"{iteration}:p/{number}"
            rewards = [float(rng.choice([0.0, 0.25, 1.0])) for _ in range(size)]
            is_dropped = bool(rng.random() < 0.3)
            if is_dropped:
                dropped[group] = list(range(size))
            for index, reward in enumerate(rewards):
                is_unscored = bool(rng.random() < 0.1)
                response = " ".join(rng.choice(WORDS, size=3))
                finished = bool(rng.random() < 0.8)
                advantage = round(float(rng.normal()), 3) if not is_dropped else None
                reward_written = math.nan if is_unscored else reward
                lost = {"logged": {"lost": "timeout"}} if response.startswith("delta") else {}
                lines.append(line(group, response, reward_written, finished=finished, **lost))
                if not is_dropped:
                    plan_rows.append((group, index, advantage))
                expected.append(
                    {
                        "iteration": iteration,
                        "group": group,
                        "index": index,
                        "response": response,
                        "reward": None if is_unscored else reward,
                        "finished": finished,
                        "advantage": advantage,
                        "dropped": "surplus" if is_dropped else None,
                    }
                )
        write_rollouts(run, iteration, *lines)
        append_plan(run, iteration, plan_rows, dropped)
    return expected


def append_plan(run: Path, iteration: int, rows: list[Any], dropped: dict[str, Any]) -> None:
    folder = RunFolder(run)
    groups = list(dict.fromkeys(group for group, _, _ in rows))
    folder.append(
        "plans",
        {
            "iteration": iteration,
            "rule": "whole",
            "steps": [list(range(len(rows)))],
            "group": [groups.index(group) for group, _, _ in rows],
            "groups": groups,
            "index": [index for _, index, _ in rows],
            "advantage": [advantage for _, _, advantage in rows],
            "tokens": [3] * len(rows),
            "born": [iteration] * len(rows),
            "describe": {},
        },
    )
    if dropped:
        folder.append("drops", {"iteration": iteration, "surplus": dropped})
    folder.append("metrics", {"iteration": iteration, "success": 0.5, "verifier_timeouts": 2})


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    expected = made_up(folder / "run")
    with serve(folder, cache=folder / "cache") as client:
        yield client, expected


def identity(row: dict[str, Any]) -> tuple[str, int]:
    return row["group"], row["index"]


FILTERS = {
    "reward_min=0.2": lambda row: row["reward"] is not None and row["reward"] >= 0.2,
    "reward_max=0.25": lambda row: row["reward"] is not None and row["reward"] <= 0.25,
    "sign=positive": lambda row: row["advantage"] is not None and row["advantage"] > 0,
    "sign=negative": lambda row: row["advantage"] is not None and row["advantage"] < 0,
    "cut=1": lambda row: not row["finished"],
    "dropped=surplus": lambda row: row["dropped"] == "surplus",
    "dropped=aged": lambda row: False,
    "prompt=p/2": lambda row: row["group"].endswith(":p/2"),
    "iteration_min=3&iteration_max=4": lambda row: 3 <= row["iteration"] <= 4,
    "length_min=4": lambda row: False,
    "length_max=3": lambda row: True,
    "timeout=1": lambda row: row["response"].startswith("delta"),
    "search=BETA": lambda row: "beta" in row["response"].lower(),
    "search=STRASSE": lambda row: "straße" in row["response"],
    "search=ÜNÏ alpha": lambda row: "Ünï" in row["response"] and "alpha" in row["response"],
    'search="alpha delta"': lambda row: "alpha delta" in row["response"],
    "search=many%3F": lambda row: True,  # in every prompt
    "search=many%3F gamma": lambda row: "GAMMA" in row["response"],
    "search=nowhere": lambda row: False,
    "search=alpha&sign=negative&cut=1": lambda row: (
        "alpha" in row["response"] and (row["advantage"] or 0) < 0 and not row["finished"]
    ),
}


@pytest.mark.parametrize("parameters", FILTERS)
def test_a_filter_gives_what_a_plain_loop_gives(searched, parameters):
    client, expected = searched
    wanted = {identity(row) for row in expected if FILTERS[parameters](row)}
    rows = all_rows(client, f"/runs/run/rollouts?{parameters}")
    assert len(rows) == len(wanted)
    assert {identity(row) for row in rows} == wanted
    assert get(client, f"/runs/run/rollouts?{parameters}")["total"] == len(wanted)


def test_groups_without_spread(searched):
    client, expected = searched
    rewards: dict[str, set[float]] = {}
    for row in expected:
        if row["reward"] is not None:
            rewards.setdefault(row["group"], set()).add(row["reward"])
    rows = all_rows(client, "/runs/run/rollouts?no_spread=1")
    wanted = {identity(row) for row in expected if len(rewards.get(row["group"], ())) <= 1}
    assert {identity(row) for row in rows} == wanted


@pytest.mark.parametrize("sort", ["iteration", "reward", "length", "advantage"])
@pytest.mark.parametrize("direction", ["", "-"])
def test_every_order_goes_through_all_rows_once(searched, sort, direction):
    client, expected = searched
    rows = all_rows(client, "/runs/run/rollouts", limit=5, sort=direction + sort)
    assert sorted(map(identity, rows)) == sorted(map(identity, expected))
    values = [row[sort] for row in rows if row[sort] is not None]
    assert values == sorted(values, reverse=bool(direction))
    if sort == "reward":  # rollouts without a reward come last
        assert [row["reward"] is None for row in rows] == sorted(
            row["reward"] is None for row in rows
        )


def test_rows_carry_the_texts_and_fates_of_their_rollouts(searched):
    client, expected = searched
    by_name = {identity(row): row for row in expected}
    for row in all_rows(client, "/runs/run/rollouts"):
        wanted = by_name[identity(row)]
        for name in ("response", "reward", "advantage", "finished", "dropped", "iteration"):
            assert row[name] == wanted[name], name
        fate = (row["iteration"], None)  # of its plan, and of its drop
        assert (row["trained_in"], row["dropped_in"]) == (fate[::-1] if row["dropped"] else fate)
        assert get(client, row["place"])["trained_in"] == row["trained_in"]


def test_the_histogram_counts_rewards_and_ignores_its_own_filter(searched):
    client, expected = searched
    counts = {value: sum(row["reward"] == value for row in expected) for value in (0.0, 0.25, 1.0)}
    page = get(client, "/runs/run/rollouts", reward_min=0.2)
    assert {each["low"]: each["count"] for each in page["histogram"]} == counts


def test_many_different_rewards_fall_into_bins(tmp_path: Path):
    rewards = np.linspace(-1, 3, 50)
    write_rollouts(tmp_path / "run", 1, *(line("1:a", "x", float(reward)) for reward in rewards))
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        histogram = get(client, "/runs/run/rollouts")["histogram"]
    assert sum(each["count"] for each in histogram) == 50
    assert (histogram[0]["low"], histogram[-1]["high"]) == (-1.0, 3.0)
    counts, _ = np.histogram(rewards, bins=20)
    assert [each["count"] for each in histogram] == counts.tolist()
    # A bar as a filter gives the rollouts that it counts, although bars share their edges.
    assert [(each["least"], each["largest"]) for each in histogram[:2]] == [
        (rewards[0], rewards[2]),
        (rewards[3], rewards[4]),
    ]
    assert all(left["largest"] < right["least"] for left, right in pairwise(histogram))


def test_pages_stay_in_place_while_iterations_arrive(tmp_path: Path):
    expected = made_up(tmp_path / "run", iterations=3)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        seen: list[str] = []
        page = get(client, "/runs/run/rollouts", limit=4, sort="-iteration")
        iteration = 3
        while True:
            seen += places(page["rows"])
            if page["next"] is None:
                break
            iteration += 1  # newer rows come before the page that is being read
            write_rollouts(tmp_path / "run", iteration, line(f"{iteration}:new", "new"))
            page = get(client, "/runs/run/rollouts", limit=4, sort="-iteration", after=page["next"])
        assert len(seen) == len(set(seen)) == len(expected)
        assert get(client, "/runs/run/rollouts")["total"] == len(expected) + iteration - 3


def test_an_iteration_that_was_written_again_replaces_its_rows(tmp_path: Path):
    run = tmp_path / "run"
    made_up(run, iterations=4)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        before = all_rows(client, "/runs/run/rollouts")
        assert get(client, "/runs/run/rollouts", search="alpha")["total"] > 0
        write_rollouts(run, 4, line("4:p/0", "Changed alpha text", 0.5))
        (run / "rollouts" / "step_00002.jsonl").unlink()
        after = all_rows(client, "/runs/run/rollouts")
        kept = [row for row in before if row["iteration"] in (1, 3)]
        assert [row for row in after if row["iteration"] != 4] == kept
        assert [row["response"] for row in after if row["iteration"] == 4] == ["Changed alpha text"]
        matches = all_rows(client, "/runs/run/rollouts", search="alpha")
        assert {row["iteration"] for row in matches} <= {1, 3, 4}
        assert sum(row["iteration"] == 4 for row in matches) == 1


def test_a_resumed_run_forgets_the_plans_that_were_cut(tmp_path: Path):
    run = tmp_path / "run"
    made_up(run, iterations=3)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        rows = get(client, "/runs/run/rollouts", iteration_min=3, limit=100)["rows"]
        assert any(row["trained_in"] == 3 for row in rows)
        RunFolder(run).rewind(2)
        assert get(client, "/runs/run/rollouts", iteration_min=3)["total"] == 0
        rows = get(client, "/runs/run/rollouts", limit=100)["rows"]
        assert {row["trained_in"] for row in rows} <= {1, 2, None}
        write_rollouts(run, 3, line("3:p/0", "again", 1.0))
        append_plan(run, 3, [("3:p/0", 0, 2.5)], {})
        (row,) = get(client, "/runs/run/rollouts", iteration_min=3)["rows"]
        assert (row["advantage"], row["trained_in"]) == (2.5, 3)


def test_a_rollout_that_waited_gets_its_advantage_later(tmp_path: Path):
    run = tmp_path / "run"
    write_rollouts(run, 1, line("1:a", "waits", 1.0))
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        assert get(client, "/runs/run/rollouts")["rows"][0]["advantage"] is None
        plan = {
            "iteration": 2, "rule": "whole", "steps": [[0]], "group": [0], "groups": ["1:a"],
            "index": [0], "advantage": [0.75], "tokens": [3], "born": [1], "describe": {},
        }  # fmt: skip
        RunFolder(run).append("plans", plan)
        (row,) = get(client, "/runs/run/rollouts", sign="positive")["rows"]
        assert (row["advantage"], row["trained_in"], row["iteration"]) == (0.75, 2, 1)


def test_small_segments_are_merged_and_nothing_changes(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(segments, "MOST_SMALL_SEGMENTS", 4)
    monkeypatch.setattr(writer, "MOST_SMALL_FATE_FILES", 3)
    run, cache = tmp_path / "run", tmp_path / "cache"
    folder = index_folder(cache, run)
    rollouts = RolloutTable(folder, cache / "spill")
    for iteration in range(1, 14):
        write_rollouts(run, iteration, line(f"{iteration}:a", f"word{iteration}", 1.0))
        append_plan(run, iteration, [(f"{iteration}:a", 0, float(iteration))], {})
        IndexInThisProcess(cache).follow(run, [tmp_path])
        rollouts.refresh(60)
        page = RolloutSearch(rollouts).page(RolloutQuery.from_address({"limit": "100"}))
        assert [row["advantage"] for row in page["rows"]] == [
            float(number) for number in range(iteration, 0, -1)
        ]
    manifest = read_manifest(folder)
    assert len(manifest.segments) < 4
    assert len(manifest.fates) <= 4
    assert sum(segment.rows for segment in manifest.segments) == 13
    names = {segment.file for segment in manifest.segments} | {file for file, _ in manifest.fates}
    superseded = {file for file, _ in manifest.superseded}
    assert {path.name for path in folder.glob("*.parquet")} == names | superseded
    manifest.superseded = [(file, 0.0) for file in superseded]
    write_manifest(folder, manifest)
    assert {path.name for path in folder.glob("*.parquet")} == names


def test_a_large_file_is_indexed_in_pieces(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(segments, "FULL_ROWS", 10)
    expected = made_up(tmp_path / "run", iterations=5)
    with IndexWriter(tmp_path / "run", tmp_path / "cache", [tmp_path]) as index:
        pieces = 1
        while index.work():
            pieces += 1
    assert pieces >= 5
    manifest = read_manifest(index.folder)
    assert sorted(manifest.iterations) == [1, 2, 3, 4, 5]
    assert sum(segment.rows for segment in manifest.segments) == len(expected)
    # The newest iteration is there first.
    assert max(manifest.segments[0].iterations) == 5


def test_a_run_that_nobody_has_indexed_yet_says_so(tmp_path: Path):
    made_up(tmp_path / "run", iterations=2)
    index = IndexWriter(tmp_path / "run", tmp_path / "cache", [tmp_path])
    rollouts = RolloutTable(index.folder, tmp_path / "spill")
    rollouts.refresh(60)
    assert rollouts.indexed_share == 0.0
    index.folder.mkdir(parents=True)
    write_manifest(index.folder, Manifest(run="run"))  # as the writer begins
    rollouts.refresh(60)
    assert rollouts.indexed_share == 0.0
    while index.work():
        pass
    index.close()
    rollouts.refresh(60)
    assert rollouts.indexed_share == 1.0


def test_only_one_server_writes_and_the_other_reads(tmp_path: Path):
    made_up(tmp_path / "run", iterations=2)
    first = IndexWriter(tmp_path / "run", tmp_path / "cache", [tmp_path])
    second = IndexWriter(tmp_path / "run", tmp_path / "cache", [tmp_path])
    assert first.work() in (True, False)
    assert second._lock is None
    assert second.work() is False
    while first.work():
        pass
    rollouts = RolloutTable(second.folder, tmp_path / "spill")
    rollouts.refresh(60)
    assert rollouts.indexed_share == 1.0
    first.close()
    write_rollouts(tmp_path / "run", 3, line("3:a", "late"))
    while second.work():
        pass
    second.close()
    rollouts.refresh(60)
    assert sorted(rollouts.iterations) == [1, 2, 3]


@pytest.mark.parametrize("damage", ["manifest", "segment", "empty segment", "version"])
def test_a_damaged_index_is_made_again(tmp_path: Path, damage: str):
    expected = made_up(tmp_path / "run", iterations=3)
    cache = tmp_path / "cache"
    with serve(tmp_path, cache=cache) as client:
        assert get(client, "/runs/run/rollouts")["total"] == len(expected)
    folder = index_folder(cache, tmp_path / "run")
    if damage == "manifest":
        (folder / "manifest.json").write_text('{"version": 1, "segments": [')
    elif damage == "version":
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 0}))
    elif damage == "empty segment":
        next(folder.glob("rollouts-*")).write_bytes(b"")
    else:
        next(folder.glob("rollouts-*")).unlink()
    with serve(tmp_path, cache=cache) as client:
        assert get(client, "/runs/run/rollouts")["total"] == len(expected)


def test_an_index_that_breaks_while_it_is_served_is_named(tmp_path: Path):
    made_up(tmp_path / "run", iterations=2)
    cache = tmp_path / "cache"
    with serve(tmp_path, cache=cache) as client:
        client.library.indexer.follow(tmp_path / "run", [tmp_path])
        client.library.indexer.follow = lambda *_: None
        next(index_folder(cache, tmp_path / "run").glob("rollouts-*")).write_bytes(b"")
        response = client.get("/runs/run/rollouts")
        assert response.status_code == 422
        assert "the index of run cannot be read" in response.json()["problem"]


def test_a_file_that_cannot_be_read_is_named_and_tried_again(tmp_path: Path, monkeypatch):
    run = tmp_path / "run"
    made_up(run, iterations=3)
    path = run / "rollouts" / "step_00002.jsonl"
    iterate_rollouts = segments.iterate_rollouts

    def refuse(file: Path, damaged: Any) -> Any:
        for number, rollout in enumerate(iterate_rollouts(file, damaged)):
            if file == path and number == 2:  # what was read of it is taken back
                raise PermissionError(13, "Permission denied")
            yield rollout

    monkeypatch.setattr(segments, "iterate_rollouts", refuse)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        page = get(client, "/runs/run/rollouts")
        assert (page["total"], page["indexed"]) == (24, 1.0)
        assert page["problems"] == ["rollouts/step_00002.jsonl: Permission denied"]
        saved = client.get("/runs/run/rollouts.html").text
        assert "rollouts/step_00002.jsonl: Permission denied" in saved
        monkeypatch.undo()  # as chmod does: neither its size nor its time changes
        page = get(client, "/runs/run/rollouts")
        assert (page["total"], page["problems"]) == (36, [])


def test_a_file_that_cannot_be_read_is_not_tried_without_end(tmp_path: Path, monkeypatch):
    made_up(tmp_path / "run", iterations=3)
    attempts: list[int] = []

    def refuse(self: segments.SegmentDraft, iteration: int, path: Path, signature: Any) -> None:
        attempts.append(iteration)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(segments.SegmentDraft, "add", refuse)
    with IndexWriter(tmp_path / "run", tmp_path / "cache", [tmp_path]) as indexer:
        while indexer.work():
            pass
        assert indexer.work() is False
        assert attempts == [3, 2, 1]
        monkeypatch.setattr(writer, "RETRY_SECONDS", 0.0)
        indexer._retry_at.clear()
        indexer.work()
        assert attempts == [3, 2, 1] * 2


def test_a_link_to_nothing_or_another_name_does_not_hide_the_rollouts(tmp_path: Path):
    run = tmp_path / "run"
    made_up(run, iterations=3)
    (run / "rollouts" / "step_00009.jsonl").symlink_to(run / "rollouts" / "nothing")
    (run / "rollouts" / "step_7.jsonl").write_text(line("7:a"))
    (run / "rollouts" / "step_0000003.jsonl").write_text(line("3:a"))
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        page = get(client, "/runs/run/rollouts")
        assert (page["total"], page["indexed"], page["problems"]) == (36, 1.0, [])


def test_an_index_folder_that_cannot_be_made_is_tried_again(tmp_path: Path, monkeypatch, capsys):
    from queue import SimpleQueue

    monkeypatch.setattr("counterpoise.serve.index.process.PAUSE_SECONDS", 0.01)
    made_up(tmp_path / "run", iterations=2)
    (tmp_path / "cache").touch()  # in the place of the folder
    commands: SimpleQueue[Any] = SimpleQueue()
    commands.put({"run": str(tmp_path / "run"), "roots": [str(tmp_path)]})
    work, attempts = IndexWriter.work, []

    def work_and_count(self: IndexWriter) -> bool:
        attempts.append(self)
        if len(attempts) == 3:
            (tmp_path / "cache").unlink()
        has_more = work(self)
        if not has_more:
            commands.put(None)
        return has_more

    monkeypatch.setattr(IndexWriter, "work", work_and_count)
    run_loop(tmp_path / "cache", commands)
    manifest = read_manifest(index_folder(tmp_path / "cache", tmp_path / "run"))
    assert sorted(manifest.iterations) == [1, 2]
    assert capsys.readouterr().err.count("NotADirectoryError") == 1  # said once


def test_readers_see_whole_iterations_while_rows_are_entered(tmp_path: Path, monkeypatch):
    run, cache = tmp_path / "run", tmp_path / "cache"
    made_up(run, iterations=1)
    IndexInThisProcess(cache).follow(run, [tmp_path])
    rollouts = RolloutTable(index_folder(cache, run), cache / "spill")
    rollouts.refresh(60)
    search = RolloutSearch(rollouts)
    stop = threading.Event()
    totals: set[int] = set()

    def read() -> None:
        while not stop.is_set():
            totals.add(search.page(RolloutQuery())["total"])

    reader = threading.Thread(target=read)
    reader.start()
    for iteration in range(2, 8):
        lines = [line(f"{iteration}:p/{number}", "alpha", 1.0) for number in range(12)]
        write_rollouts(run, iteration, *lines)
        IndexInThisProcess(cache).follow(run, [tmp_path])
        rollouts.refresh(60)
    stop.set()
    reader.join()
    assert totals <= {12 * count for count in range(1, 8)}
    assert search.page(RolloutQuery())["total"] == 84


def test_the_process_beside_the_server_indexes_and_ends_with_it(tmp_path: Path):
    made_up(tmp_path / "run", iterations=2)
    process = IndexProcess(tmp_path / "cache")
    process.follow(tmp_path / "run", [tmp_path])
    folder = index_folder(tmp_path / "cache", tmp_path / "run")
    for _ in range(6000):
        manifest = read_manifest(folder)
        if manifest and len(manifest.iterations) == 2:
            break
        threading.Event().wait(0.1)
    assert len(manifest.iterations) == 2
    child = process._process
    process.close()
    assert child.poll() is not None


def test_a_fault_of_one_run_does_not_stop_the_others(tmp_path: Path, monkeypatch, capsys):
    from queue import SimpleQueue

    monkeypatch.setattr("counterpoise.serve.index.process.PAUSE_SECONDS", 0.01)
    made_up(tmp_path / "good", iterations=2)
    made_up(tmp_path / "bad", iterations=2)
    work = IndexWriter.work

    def work_or_fail(self: IndexWriter) -> bool:
        if self.run_folder.name == "bad":
            raise RuntimeError("planted")
        done = work(self)
        if not done:
            commands.put(None)
        return done

    monkeypatch.setattr(IndexWriter, "work", work_or_fail)
    commands: SimpleQueue[Any] = SimpleQueue()
    for name in ("bad", "good"):
        commands.put({"run": str(tmp_path / name), "roots": [str(tmp_path)]})
    run_loop(tmp_path / "cache", commands)
    manifest = read_manifest(index_folder(tmp_path / "cache", tmp_path / "good"))
    assert sorted(manifest.iterations) == [1, 2]
    assert "planted" in capsys.readouterr().err


def test_words_of_a_search():
    assert parse_search('  Boxed "The  Answer" boxed ') == ("boxed", "the  answer")
    assert parse_search('"') == ()
    assert parse_search("' OR 1=1 --") == ("'", "or", "1=1", "--")


def test_names_and_words_are_never_sql(tmp_path: Path):
    name = "it's; DROP TABLE rollouts --"
    write_rollouts(tmp_path / name, 1, line("1:a'b", "it's \" here %_", 1.0))
    with serve(tmp_path, cache=tmp_path / "ca'che") as client:
        address = f"/runs/{name.replace(';', '%3B')}/rollouts"
        assert get(client, address, search="it's")["total"] == 1
        assert get(client, address, search="%_")["total"] == 1
        assert get(client, address, search="_ere")["total"] == 0
        assert get(client, address, prompt="a'b")["total"] == 1


def test_tables_of_runs_that_nobody_looks_at_are_closed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("counterpoise.serve.library.OPEN_TABLES", 2)
    for name in "abcd":
        write_rollouts(tmp_path / name, 1, line())
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        for name in "abcdab":
            assert get(client, f"/runs/{name}/rollouts")["total"] == 1
        assert len(client.library._tables) == 2


def test_memory_of_a_table_is_bounded(tmp_path: Path):
    rollouts = table.RolloutTable(tmp_path / "index", tmp_path / "spill")
    settings = rollouts._connection.execute(
        "SELECT current_setting('memory_limit'), current_setting('threads')"
    ).fetchone()
    rollouts.close()
    assert settings == ("286.1 MiB", 2)  # 300 million bytes


def test_the_synthetic_run_counts_its_rollouts_once(tmp_path: Path):
    path = write_run(tmp_path / "run", iterations=4)
    stored = sum(len(RunFolder(path).read_rollouts(number)) for number in range(1, 5))
    os.utime(path / "rollouts")  # the folder's own time says nothing about its files
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        assert get(client, "/runs/run/rollouts")["total"] == stored == 96


def test_an_advantage_in_a_line_of_its_own_is_shown_until_a_plan_has_one(tmp_path: Path):
    run = tmp_path / "run"
    write_rollouts(run, 1, line("1:a", advantage=0.5), line("1:a", advantage=-0.5))
    write_rollouts(run, 2, line("2:a", advantage=0.25), line("2:a"))
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        rows = all_rows(client, "/runs/run/rollouts")
        assert [row["advantage"] for row in rows] == [None, 0.25, -0.5, 0.5]  # newest first
        assert get(client, "/runs/run/rollouts", sign="negative")["total"] == 1
        rollout = get(client, rows[2]["place"])
        assert rollout["advantage"] == -0.5
        assert [each["advantage"] for each in rollout["siblings"]] == [0.5, -0.5]
        append_plan(run, 1, [("1:a", 0, 2.0), ("1:a", 1, -2.0)], {})
        rows = all_rows(client, "/runs/run/rollouts")
        assert [row["advantage"] for row in rows] == [None, 0.25, -2.0, 2.0]
