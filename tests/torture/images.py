"""What a disk holds if a run dies at a system call: by a kill, or by a power cut.

A recorded run is interrupted before each call that changes its folder (intercept.c), and in the
middle of each write. A kill leaves what is there at that moment. A power cut leaves

    strict   only what fsync has flushed: contents of files, names of folders
    random   for each name and each content that was not flushed, the old or the new one, or a new
             one that is cut or ends in zeros

which is all that POSIX promises. Contents are stored once, by their digest.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HALF_WRITE = -1
Files = dict[str, bytes | None]  # path inside the watched folder -> content; None: a folder
Image = dict[str, str | None]  # the same, with digests of stored contents


def build_library(folder: Path) -> Path | None:
    """Compile intercept.c; None if there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "intercept.so"
    source = Path(__file__).with_name("intercept.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-w", "-o", library, source, "-ldl"], check=True
    )
    return library


HookType = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)


def arm(hook: Any, folder: Path) -> None:
    """Call `hook` before each change below `folder`; in a process with the preloaded library."""
    library = ctypes.CDLL(None)
    library.torture_arm.argtypes = [HookType, ctypes.c_char_p]
    callback = HookType(lambda call, path, fd: hook(call.decode(), os.fsdecode(path), fd))
    _kept_callbacks.append(callback)
    library.torture_arm(callback, os.fsencode(folder))


_kept_callbacks: list[Any] = []


# -- recording ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recorder:
    """Records images of `watched` into `store`; to be armed in the process of the run."""

    watched: Path
    store: Path
    seed: int
    flushed: dict[int, bytes] = field(default_factory=dict)  # inode -> content
    flushed_names: dict[int, dict[str, int]] = field(default_factory=dict)  # folder -> inodes
    held: list[int] = field(default_factory=list)  # so that no inode is used again

    def hook(self, call: str, path: str, descriptor: int) -> int:
        self.record(call)
        if call == "fsync":
            self._note_flush(descriptor)
        return HALF_WRITE if call == "write" else 0

    def mark_all_flushed(self) -> None:
        """What is there now was written long ago."""
        for path in [self.watched, *self.watched.rglob("*")]:
            descriptor = os.open(path, os.O_RDONLY)
            self._note_flush(descriptor)
            os.close(descriptor)

    def record(self, call: str) -> None:
        actual, inodes = read_tree(self.watched)
        rng = random.Random(f"{self.seed} {len(self.held)} {len(actual)}")
        record = {
            "call": call,
            "kill": self._save(actual),
            "strict": self._save(self._strict_tree()),
            "random": self._save(self._random_tree(actual, inodes, rng)),
        }
        with (self.store / "images.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def _note_flush(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        self.held.append(os.dup(descriptor))
        if stat.S_ISDIR(about.st_mode):
            folder = f"/proc/self/fd/{descriptor}"
            self.flushed_names[about.st_ino] = {
                entry.name: (entry.inode() if entry.is_file() else -entry.inode())
                for entry in os.scandir(folder)
            }
        else:
            self.flushed[about.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def _strict_tree(self) -> Files:
        files: Files = {}

        def rebuild(inode: int, prefix: str) -> None:
            for name, child in self.flushed_names.get(inode, {}).items():
                if child < 0:
                    files[prefix + name] = None
                    rebuild(-child, f"{prefix}{name}/")
                else:
                    files[prefix + name] = self.flushed.get(child, b"")

        rebuild(self.watched.stat().st_ino, "")
        return files

    def _random_tree(self, actual: Files, inodes: dict[str, int], rng: random.Random) -> Files:
        strict = self._strict_tree()
        survivors: Files = {}
        for name in sorted(actual.keys() | strict.keys()):
            choices: list[Any] = []
            if name in strict:
                choices.append(strict[name])
            if name in actual:
                choices += self._possible_contents(actual[name], inodes.get(name), rng)
            if (name in strict) != (name in actual) and not self._was_moved(name, inodes):
                choices.append(ABSENT)
            chosen = rng.choice(choices)
            if chosen is not ABSENT:
                survivors[name] = chosen
        # A file needs its folder.
        return {
            name: content
            for name, content in survivors.items()
            if all(str(parent) in survivors for parent in Path(name).parents if str(parent) != ".")
        }

    def _was_moved(self, name: str, inodes: dict[str, int]) -> bool:
        """Whether the name was flushed in its folder before that folder was renamed."""
        parent, _, own_name = name.rpartition("/")
        return own_name in self.flushed_names.get(inodes.get(parent, -1), {}) and name in inodes

    def _possible_contents(
        self, content: bytes | None, inode: int | None, rng: random.Random
    ) -> list[bytes | None]:
        if content is None or inode is None:
            return [content]
        flushed = self.flushed.get(inode)
        if flushed == content:
            return [content]
        # What was flushed and not overwritten since stays; behind it anything may be lost.
        kept = len(flushed) if flushed is not None and content.startswith(flushed) else 0
        cut = rng.randint(kept, len(content))
        zeros = bytes(rng.randint(0, len(content) - cut))
        return [content, content[:kept], content[:cut], content[:cut] + zeros]

    def _save(self, files: Files) -> Image:
        image: Image = {}
        for name, content in files.items():
            if content is None:
                image[name] = None
                continue
            digest = hashlib.sha256(content).hexdigest()[:32]
            blob = self.store / digest
            if not blob.exists():
                blob.write_bytes(content)
            image[name] = digest
        return image


ABSENT = object()


def read_tree(folder: Path) -> tuple[Files, dict[str, int]]:
    files: Files = {}
    inodes: dict[str, int] = {}
    for root, folder_names, file_names in os.walk(folder):
        prefix = os.path.relpath(root, folder)
        base = "" if prefix == "." else f"{prefix}/"
        for name in folder_names:
            files[base + name] = None
            inodes[base + name] = Path(root, name).stat().st_ino
        for name in file_names:
            path = Path(root, name)
            files[base + name] = path.read_bytes()
            inodes[base + name] = path.stat().st_ino
    return files, inodes


# -- using images ---------------------------------------------------------------------------------


def read_images(store: Path) -> Iterator[dict[str, Any]]:
    with (store / "images.jsonl").open() as file:
        yield from map(json.loads, file)


def restore_image(image: Image, store: Path, folder: Path) -> None:
    """Make `folder` what an image says."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, digest in sorted(image.items()):
        if digest is None:
            (folder / name).mkdir(parents=True, exist_ok=True)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(store / digest, folder / name)
