"""Weights & Biases, offline: what its own files hold is what the run folder holds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run.trackers.made_up import metrics, run_folder

from counterpoise.config.load import load_config
from counterpoise.hosts.verl.run import logger_environment
from counterpoise.run.trackers.feed import send_run, track_run
from counterpoise.store.folder import RunFolder

pytest.importorskip("wandb", reason="wandb is not installed: pip install 'counterpoise[wandb]'")
BLOCK, HEAD = 32768, 7  # of a .wandb file: records in pieces, each with checksum, size and kind
ROWS = [
    {"iteration": 0, "heldout/success": 0.5},
    {"iteration": 1, "reward/success": 0.125},
    {"iteration": 2, "reward/success": 0.25},
    {"iteration": 3, "reward/success": 0.375},
    {"iteration": 3, "heldout/success": 0.53},
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def records(file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    at, whole = HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + HEAD + size > len(data):
            return  # still being written
        whole += data[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if kind in (1, 4):  # the whole of one, or its last piece
            yield Record.FromString(whole)
            whole = b""


def finished_openings(place: Path, count: int) -> list[list[Any]]:
    """The records of the `count` offline runs in `place`, once each of them holds its end.

    W&B's own process writes these files, and may still do so after `finish` has returned.
    """
    deadline = time.monotonic() + 600
    while True:
        stored = [list(records(file)) for file in sorted(place.glob("offline-run-*/*.wandb"))]
        if len(stored) == count and all(of_kind(opening, "exit") for opening in stored):
            return stored
        assert time.monotonic() < deadline, "W&B has not written the end of a run"
        time.sleep(0.1)


def of_kind(found: list[Any], kind: str) -> list[Any]:
    return [getattr(r, kind) for r in found if r.WhichOneof("record_type") == kind]


def rows(found: list[Any]) -> list[dict[str, Any]]:
    lines = [
        {item.nested_key[0]: json.loads(item.value_json) for item in line.item}
        for line in of_kind(found, "history")
    ]
    assert [line["_step"] for line in lines] == list(range(len(lines)))
    names = ("iteration", "reward/success", "heldout/success")
    return [{name: line[name] for name in names if name in line} for line in lines]


def test_a_run_that_is_resumed_is_one_run_of_theirs(tmp_path: Path) -> None:
    """Offline every opening is whole, so the last one is the one to sync."""
    folder = run_folder(tmp_path / "demo")
    (told,) = send_run(folder.path, ["wandb"], None)
    assert told == f"wandb: 3 iterations -> {folder.path}/wandb"
    with track_run(folder, ["wandb"], pytest.fail):
        folder.append("metrics", metrics(4))
    first, second = finished_openings(folder.path / "wandb", 2)
    assert rows(first) == ROWS
    assert rows(second) == [*ROWS, {"iteration": 4, "reward/success": 0.5}]
    (one,), (other,) = of_kind(first, "run"), of_kind(second, "run")
    assert one.run_id == other.run_id != ""
    assert (one.project, one.display_name) == ("counterpoise", "demo")
    config = {item.key: json.loads(item.value_json) for item in one.config.update}
    assert config["sample"]["prompts"] == 16
    steps = {metric.glob_name or metric.name: metric for metric in of_kind(first, "metric")}
    assert steps["*"].step_metric == "iteration"
    (ended,) = of_kind(second, "exit")
    assert ended.exit_code == 0


def test_a_run_that_is_stopped_is_marked_as_failed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "demo")
    with pytest.raises(KeyboardInterrupt), track_run(folder, ["wandb"], pytest.fail):
        raise KeyboardInterrupt
    (opening,) = finished_openings(folder.path / "wandb", 1)
    (ended,) = of_kind(opening, "exit")
    assert ended.exit_code == 1


class Theirs:
    """A run that their server has `starting_step` rows of; the `fails`-th new one is not taken."""

    def __init__(self, starting_step: int, fails: int = 0) -> None:
        self.starting_step, self.fails = starting_step, fails
        self.logged: list[dict[str, Any]] = []

    def define_metric(self, name: str, **_: Any) -> None: ...

    def log(self, values: dict[str, Any]) -> None:
        if len(self.logged) + 1 == self.fails:
            raise ConnectionError("the network is gone")
        self.logged.append(values)

    def finish(self, exit_code: int) -> None: ...


def test_what_their_server_has_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, asked = Theirs(starting_step=3), SimpleNamespace(given={})

    def init(**given: Any) -> Theirs:
        asked.given = given
        return theirs

    monkeypatch.setattr("counterpoise.run.trackers.wandb.init", init)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    folder = run_folder(tmp_path / "demo")
    send_run(folder.path, ["wandb"], None)
    assert [row["iteration"] for row in theirs.logged] == [3, 3]
    known = json.loads((folder.path / "wandb" / "id.json").read_text())["id"]
    assert (asked.given["id"], asked.given["resume"]) == (known, "allow")
    assert (asked.given["project"], asked.given["name"]) == ("mine", "demo")


def test_a_network_that_is_gone_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, said = Theirs(starting_step=5, fails=2), list[str]()
    monkeypatch.setattr("counterpoise.run.trackers.wandb.init", lambda **_: theirs)
    folder = run_folder(tmp_path / "demo")
    with track_run(folder, ["wandb"], said.append):
        for iteration in range(4, 8):
            folder.append("metrics", metrics(iteration))
    assert [row["iteration"] for row in theirs.logged] == [4]
    assert said == [
        "wandb is off: the network is gone; send the rest later with "
        f"poise track {folder.path} --to wandb"
    ]
    assert len(folder.read("metrics")) == 7


def test_verl_goes_on_with_the_same_run_of_theirs(tmp_path: Path) -> None:
    config = load_config("demo", ["track.to=[wandb]"])
    first = logger_environment(config, tmp_path)
    assert first == logger_environment(config, tmp_path)
    assert first["WANDB_RESUME"] == "allow"
    assert first["WANDB_RUN_ID"] in (tmp_path / "wandb" / "id.json").read_text()
    assert RunFolder(tmp_path).read("metrics") == []
