"""Whole files and folders: after a power cut, too."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from power_cut import PowerCut

from counterpoise.config import RunConfig
from counterpoise.files import (
    append_line,
    atomic_write,
    make_folder,
    remove_leftovers,
    sync_folder,
)
from counterpoise.store.folder import RunFolder


def names(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, cut, after = (tmp_path / name for name in ("disk", "cut", "after"))
    power = PowerCut(monkeypatch)
    make_folder(before)
    with atomic_write(before / "a") as temporary:
        temporary.write_text("first")
    with atomic_write(before / "a", durable=False) as temporary:
        temporary.write_text("second")
    power.leaves(before, cut)
    assert names(cut) == {"a": b"first"}

    with atomic_write(before / "model") as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "deep" / "weights").write_text("w")
        (temporary / "config").write_text("c")
    power.leaves(before, after)
    assert names(after)["model/deep/weights"] == b"w"
    assert names(after)["model/config"] == b"c"


def test_a_run_folder_flushes_what_iterations_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = PowerCut(monkeypatch)
    make_folder(tmp_path / "disk")
    folder = RunFolder.create(tmp_path / "disk" / "new" / "run", RunConfig())
    folder.append("metrics", {"iteration": 1})
    folder.write_rollouts(1, [])
    folder.sync()
    folder.append("metrics", {"iteration": 2})
    power.leaves(tmp_path / "disk", tmp_path / "cut")
    run = tmp_path / "cut" / "new" / "run"
    assert [line["iteration"] for line in RunFolder.open(run).read("metrics")] == [1]
    assert set(names(run)) == {
        "config.toml", "metrics.jsonl", "checksums.jsonl", "rollouts/step_00001.jsonl",
    }  # fmt: skip
    assert RunFolder.open(run).read_config() == RunConfig()


def test_a_folder_that_cannot_be_flushed_is_passed_over_and_a_broken_disk_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(number: int) -> None:
        def fsync(descriptor: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    fails(errno.EINVAL)  # some network file systems
    sync_folder(tmp_path)
    with (
        pytest.raises(OSError, match="Invalid argument"),
        atomic_write(tmp_path / "a") as temporary,
    ):
        temporary.write_text("a file can be flushed everywhere")
    fails(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_could_not_be_replaced_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("old")

    def failing(self: Path, other: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="Input/output"), atomic_write(target) as temporary:
        temporary.mkdir()
    assert names(tmp_path) == {"model/old": b"old"}


def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="not a file"), atomic_write(pipe) as temporary:
        temporary.write_text("page")
    assert pipe.is_fifo()


def test_leftovers_of_one_name(tmp_path: Path) -> None:
    for name in (".config.toml.77.part", ".model.78.part", ".hidden"):
        append_line(tmp_path / name, "half")
    remove_leftovers(tmp_path, "config.toml")
    assert set(names(tmp_path)) == {".model.78.part", ".hidden"}
    remove_leftovers(tmp_path)
    assert set(names(tmp_path)) == {".hidden"}
