"""`poise track`: any folder with metrics, at any time, as often as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.importing.foreign import trl_file
from run.trackers.made_up import judged, metrics, run_folder
from run.trackers.test_tensorboard import shown

from counterpoise.cli import app, main
from counterpoise.errors import PoiseError
from counterpoise.files import folder_lock
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.model.load import EMBEDDED_FOLDER
from counterpoise.run.trackers.feed import send_run, timed_log_lines, track_run

SUCCESS = [(1, 0.125), (2, 0.25), (3, 0.375)]


def test_rows_in_the_order_of_writing_and_by_the_clock_of_the_run(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    rows = timed_log_lines(folder)
    assert [(log, line["iteration"]) for log, line, _ in rows] == [
        ("evaluations", 0), ("metrics", 1), ("metrics", 2), ("metrics", 3), ("evaluations", 3),
    ]  # fmt: skip
    last = (folder.path / "evaluations.jsonl").stat().st_mtime
    assert [at - last for _, _, at in rows] == pytest.approx([-35, -25, -15, -5, 0])


def test_a_run_that_goes_on_is_sent_again_when_there_is_more(tmp_path: Path) -> None:
    """Its own lock is no hindrance; what was sent before is not shown twice."""
    folder = run_folder(tmp_path / "run")
    with folder_lock(folder.path):
        (told,) = send_run(folder.path, ["tensorboard", "tensorboard"], None)
        assert told == f"tensorboard: 3 iterations -> {folder.path / 'tensorboard'}"
        assert shown(folder.path / "tensorboard")["reward/success"] == SUCCESS
        folder.append("metrics", metrics(4))
        folder.append("evaluations", judged(4))
        folder.append("evaluations", judged(4, temperature=0.5))
        send_run(folder.path, ["tensorboard"], None)
    found = shown(folder.path / "tensorboard")
    assert found["reward/success"] == [*SUCCESS, (4, 0.5)]
    assert [step for step, _ in found["heldout/success"]] == [0, 3, 4]
    assert [step for step, _ in found["heldout_0.5_0.95/success"]] == [4]


def test_a_row_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    """What is killed later has lost nothing."""
    folder = run_folder(tmp_path / "run")
    with track_run(folder, ["tensorboard"], pytest.fail):
        folder.append("metrics", metrics(4))
        assert shown(folder.path / "tensorboard")["reward/success"] == [*SUCCESS, (4, 0.5)]


def test_what_is_written_after_the_run_is_not_sent(tmp_path: Path) -> None:
    folder, notices = run_folder(tmp_path / "run"), []
    with track_run(folder, ["tensorboard"], notices.append):
        assert len(folder.listeners) == 1
    assert folder.listeners == []
    folder.append("metrics", metrics(4))
    assert shown(folder.path / "tensorboard")["reward/success"] == SUCCESS
    assert notices == []


def test_out_holds_many_runs_by_their_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        send_run(run_folder(tmp_path / name).path, ["tensorboard"], tmp_path / "all")
        assert not (tmp_path / name / "tensorboard").exists()
    for name in ("a", "b"):
        assert shown(tmp_path / "all" / name / "tensorboard")["reward/success"] == SUCCESS
    send_run(tmp_path / "a", ["tensorboard"], tmp_path / "all")  # once more
    namesake = run_folder(tmp_path / "elsewhere" / "a")
    with pytest.raises(PoiseError, match=f"belongs to another run, {tmp_path}/a: choose"):
        send_run(namesake.path, ["tensorboard"], tmp_path / "all")


def test_an_imported_run(tmp_path: Path) -> None:
    trl_file(tmp_path / "theirs", step=1)
    trl_file(tmp_path / "theirs", step=10, rewards={"correct": [1.0, 0.0, 1.0, 1.0]})
    import_run(tmp_path / "theirs", tmp_path / "run", tokenizer=str(EMBEDDED_FOLDER))
    send_run(tmp_path / "run", ["tensorboard"], None)
    found = shown(tmp_path / "run" / "tensorboard")
    assert found["reward/success"] == [(1, 0.5), (10, 0.75)]
    assert found["sample/groups"] == [(1, 2.0), (10, 2.0)]


def test_two_do_not_write_one_place(tmp_path: Path) -> None:
    """Such as a run that is tracked while it is trained, and the command."""
    folder = run_folder(tmp_path / "run")
    place = folder.path / "tensorboard"
    place.mkdir()
    with folder_lock(place), pytest.raises(PoiseError, match="being written by another process"):
        send_run(folder.path, ["tensorboard"], None)
    assert list(place.iterdir()) == []
    send_run(folder.path, ["tensorboard"], None)


def test_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path / "run")
    app(["track", str(folder.path), "--to", "tensorboard"], standalone_mode=False)
    assert capsys.readouterr().out == f"tensorboard: 3 iterations -> {folder.path}/tensorboard\n"
    (folder.path / "metrics.jsonl").unlink()
    monkeypatch.setattr("sys.argv", ["poise", "track", str(folder.path), "--to", "tensorboard"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "there is nothing to send" in capsys.readouterr().err
