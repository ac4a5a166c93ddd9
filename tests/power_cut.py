"""A power cut, by the letter of POSIX: only what was flushed by fsync is there afterwards."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


class PowerCut:
    """Notes every fsync: a file keeps the content it had then, a folder the names it had then.

    Example:
        cut = PowerCut(monkeypatch)
        ...                                        # write into tmp_path / "run"
        cut.leaves(tmp_path, elsewhere)            # elsewhere / "run" is what the disk still has
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: dict[int, bytes] = {}  # inode -> content
        self.names: dict[int, dict[str, os.stat_result]] = {}  # inode of a folder -> its entries
        self.held: list[int] = []  # open descriptors, so that no inode is given to another file
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        self.held.append(os.dup(descriptor))
        if stat.S_ISDIR(about.st_mode):
            names = os.listdir(descriptor)
            self.names[about.st_ino] = {n: os.stat(n, dir_fd=descriptor) for n in names}
        else:
            self.contents[about.st_ino] = os.pread(descriptor, about.st_size, 0)

    def leaves(self, folder: Path, copy: Path) -> None:
        """Write to `copy` what of `folder` survives."""
        self._rebuild(folder.stat().st_ino, copy)
        for descriptor in self.held:
            os.close(descriptor)
        self.held.clear()

    def _rebuild(self, inode: int, copy: Path) -> None:
        copy.mkdir()
        for name, about in self.names.get(inode, {}).items():
            if stat.S_ISDIR(about.st_mode):
                self._rebuild(about.st_ino, copy / name)
            else:
                (copy / name).write_bytes(self.contents.get(about.st_ino, b""))
