"""Trackio: what its store holds is what the run folder holds, once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from run.trackers.made_up import metrics, run_folder

from counterpoise.run.trackers.feed import send_run, track_run

trackio = pytest.importorskip(
    "trackio", reason="trackio is not installed: pip install 'counterpoise[trackio]'"
)
NAMES = ("iteration", "reward/success", "heldout/success")
ROWS = [
    (0, {"iteration": 0, "heldout/success": 0.5}),
    (1, {"iteration": 1, "reward/success": 0.125}),
    (2, {"iteration": 2, "reward/success": 0.25}),
    (3, {"iteration": 3, "reward/success": 0.375}),
    (3, {"iteration": 3, "heldout/success": 0.53}),
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own: Trackio reads the variable TRACKIO_DIR only when it is imported."""
    place = tmp_path / "store"
    modules = [
        "trackio", "trackio.utils", "trackio.sqlite_storage", "trackio.fragments",
        "trackio.bucket_storage", "counterpoise.run.trackers.trackio",
    ]  # fmt: skip
    for module in modules:
        monkeypatch.setattr(f"{module}.TRACKIO_DIR", place, raising=False)
    monkeypatch.setattr("trackio.sqlite_storage.MEDIA_DIR", place / "media", raising=False)
    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    return place


def stored_rows(store: Path, project: str = "counterpoise") -> dict[str, list[tuple[int, Any]]]:
    """The rows of every run, by name, in the order of writing; read without Trackio's caches."""
    import orjson

    with sqlite3.connect(store / f"{project}.db") as database:
        lines = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id")
        rows: dict[str, list[tuple[int, Any]]] = {}
        for run_name, step, values in lines.fetchall():
            known = orjson.loads(values)
            kept = {name: known[name] for name in NAMES if name in known}
            rows.setdefault(run_name, []).append((step, kept))
    return rows


def test_a_run_that_is_resumed_is_one_run_of_theirs(
    store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "demo")
    (told,) = send_run(folder.path, ["trackio"], None)
    assert told == f"trackio: 3 iterations -> {store}"
    ((run_name, first),) = stored_rows(store).items()
    assert run_name.startswith("demo-")
    assert first == ROWS
    with track_run(folder, ["trackio"], pytest.fail):
        folder.append("metrics", metrics(4))
    assert stored_rows(store) == {run_name: [*ROWS, (4, {"iteration": 4, "reward/success": 0.5})]}
    (theirs,) = trackio.Api().runs("counterpoise")
    assert theirs.config["sample"]["prompts"] == 16
    assert capfd.readouterr().out == ""


def test_runs_of_one_name_are_not_mixed_up(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_PROJECT", "mine")
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        send_run(run_folder(tmp_path / place / "demo").path, ["trackio"], None)
    runs = stored_rows(store, "mine")
    assert len(runs) == 2
    assert all(rows == ROWS for rows in runs.values())
    assert len((tmp_path / "a" / "demo" / "trackio" / "id.json").read_text()) > 8


def test_a_store_that_cannot_be_opened_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def refuse(**_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("counterpoise.run.trackers.trackio.init", refuse)
    folder = run_folder(tmp_path / "demo")
    with track_run(folder, ["trackio"], said.append):
        folder.append("metrics", metrics(4))
    assert said == [
        "trackio is off: the disk is gone; send the rest later with "
        f"poise track {folder.path} --to trackio"
    ]
