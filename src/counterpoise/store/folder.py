"""A run folder: whole files are replaced atomically, JSON lines are appended. schema.py lists them.

A resumed run first goes back to its checkpoint: later lines and files are dropped and written
anew, so a folder never holds two versions of an iteration, nor half a line.

What an iteration writes is flushed to the disk by `sync`, before the checkpoint that counts on it:
flushing every line would cost more, and after a power cut later iterations are made again anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config, to_toml
from counterpoise.errors import PoiseError
from counterpoise.files import (
    alone,
    append_line,
    leftovers,
    make_folder,
    remove_leftovers,
    replacing,
    sync_file,
    sync_folder,
    whole_lines,
    writing,
)
from counterpoise.store.logs import read_log
from counterpoise.store.rollout_lines import rollout_lines
from counterpoise.store.schema import LOGS, STEP_FILES
from counterpoise.types import Group, TokenTrace

SCHEMA = 1
CONFIG = "config.toml"  # makes a folder a run
IMPORTED = "imported.json"  # makes a folder that of another trainer's run
CHECKPOINTS = "checkpoints"
MODEL = "model"  # a folder, when the run has ended


def check_no_run(out: Path, what: str) -> None:
    """Where something else is to be written: a run's report and files stay its own."""
    if is_run(out):
        raise PoiseError(f"{out} holds a run: choose another --out for {what}")


def is_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def is_imported(path: Path) -> bool:
    return (path / IMPORTED).is_file()


def is_planned(path: Path) -> bool:
    """Another trainer's run whose batches our adapter for TRL planned, and kept."""
    return is_imported(path) and (path / "plans.jsonl").is_file()


class RunFolder:
    writes = True  # False: another process writes the folder, this one only reads it

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self._unsynced: set[Path] = set()  # written, and perhaps not yet on the disk
        self.listeners: list[Callable[[str, dict[str, Any]], None]] = []  # (log, what was appended)

    # -- opening -------------------------------------------------------------------------------

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Refuse a folder that holds a run, or that is no folder, before any work is done."""
        try:
            str(path).encode()
        except UnicodeEncodeError:  # safetensors, which writes the model at the end, has no such
            raise PoiseError(f"{path} is not UTF-8: choose another --out") from None
        try:
            if (path / CONFIG).exists():
                raise PoiseError(
                    f"{path} already holds a run: choose another --out, or go on with it by "
                    f"poise train --resume --out {path}"
                )
            if path.exists() and not path.is_dir():
                raise PoiseError(f"{path} is a file; --out must name a folder")
            if path.is_dir() and set(path.iterdir()) - set(leftovers(path, CONFIG)):
                raise PoiseError(f"{path} is not empty and holds no run: choose another --out")
        except OSError as fault:
            raise PoiseError(f"{path} cannot be used: {fault.strerror}") from fault

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunFolder:
        cls.check_free(path)
        try:
            make_folder(path)
            with alone(path):  # or the leftovers may be those of a run that starts just now
                cls.check_free(path)
                remove_leftovers(path, CONFIG)
                with replacing(path / CONFIG) as temporary:
                    temporary.write_text(to_toml(config), encoding="utf-8")
        except OSError as fault:
            raise PoiseError(f"{path} cannot be written: {fault.strerror}") from fault
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not path.exists():
            raise PoiseError(f"{path} does not exist: name the folder of a run")
        if is_imported(path):
            what = "was written by a script with TRL: it has no config.toml"
            without = "was imported: it has rollouts, but no config.toml and no token trace"
            raise PoiseError(
                f"{path} {what if is_planned(path) else without}; poise report {path} shows it"
            )
        if not (is_run(path) or (path / CHECKPOINTS).is_dir()):
            children = sorted(path.glob("*"))
            inside = next((c for c in children if is_run(c) or is_imported(c)), None)
            hint = f"; {inside} holds one" if inside else ""
            raise PoiseError(f"{path} holds no run: {CONFIG} is missing{hint}")
        return cls(path)

    def write_config(self, config: RunConfig) -> None:
        with self.replacing(CONFIG) as temporary:
            temporary.write_text(to_toml(config), encoding="utf-8")

    def config(self) -> RunConfig:
        return load_config(self.path / CONFIG)

    # -- writing -------------------------------------------------------------------------------

    def writing(self, name: str) -> AbstractContextManager[None]:
        """Around whatever writes a part of the folder: a fault of the disk is one clear line."""
        return writing(self.path / name, self.path)

    @contextmanager
    def replacing(self, name: str, *, durable: bool = True) -> Iterator[Path]:
        """`atomic.replacing` for a file of the folder; `sync` flushes it if this does not."""
        path = self.path / name
        with self.writing(name), replacing(path, durable=durable) as temporary:
            temporary.parent.mkdir(exist_ok=True)
            yield temporary
        if not durable:
            self._unsynced.add(path)

    def sync(self) -> None:
        """What iterations wrote since the last call is on the disk when this returns."""
        for path in sorted(self._unsynced):
            with self.writing(str(path.relative_to(self.path))):
                sync_file(path)
        for folder in sorted({self.path, *(path.parent for path in self._unsynced)}):
            with self.writing(str(folder.relative_to(self.path))):
                sync_folder(folder)
        self._unsynced.clear()

    def append(self, log: str, record: dict[str, Any]) -> None:
        """One line of one of the LOGS."""
        file = self.path / f"{log}.jsonl"
        with self.writing(file.name):
            append_line(file, json.dumps({"schema": SCHEMA, **record}))
        self._unsynced.add(file)
        for hear in self.listeners:
            hear(log, record)

    def write_rollouts(self, iteration: int, groups: Sequence[Group]) -> None:
        text = "".join(line + "\n" for line in rollout_lines(groups))
        with self.replacing(f"rollouts/step_{iteration:05d}.jsonl", durable=False) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_vocabulary(self, pieces: Sequence[str]) -> None:
        """The text of every token, so that readers of the folder need no tokenizer."""
        text = json.dumps({"schema": SCHEMA, "tokens": list(pieces)})
        with self.replacing("vocabulary.json") as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_table(self, kind: str, iteration: int, trace: TokenTrace) -> None:
        """tokens/step_00012.parquet: a row a trained token; pushes/: a row a push."""
        table = pa.table(dict(trace.columns)).replace_schema_metadata(
            {"counterpoise_schema": str(SCHEMA)}
        )
        name = f"{kind}/step_{iteration:05d}.parquet"
        with self.replacing(name, durable=False) as temporary:
            # a dictionary of numbers that hardly repeat costs six times the time, and space
            pq.write_table(table, temporary, use_dictionary=False, write_statistics=False)

    def rewind(self, iteration: int) -> None:
        """Forget everything after `iteration` finished iterations."""
        for log in LOGS:
            kept = [r for r in self.read(log) if r["iteration"] <= iteration]
            if (self.path / f"{log}.jsonl").exists():
                with self.replacing(f"{log}.jsonl") as temporary:
                    temporary.write_text(
                        "".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8"
                    )
        for kind in (".", CHECKPOINTS, *STEP_FILES):
            remove_leftovers(self.path / kind)
        for kind in STEP_FILES:
            for number, path in self.step_files(kind).items():
                if number > iteration:
                    path.unlink()

    # -- reading -------------------------------------------------------------------------------

    def read(self, log: str) -> list[dict[str, Any]]:
        """Records of one log; a last line cut off by a crash is left out."""
        return read_log(self.path / f"{log}.jsonl", log)

    def step_files(self, kind: str) -> dict[int, Path]:
        """The files of one of the STEP_FILES, by iteration."""
        files = {
            path.stem.removeprefix("step_"): path for path in (self.path / kind).glob("step_*")
        }
        # Whatever else lies there is not a file of the run.
        return {int(number): path for number, path in files.items() if number.isdecimal()}

    def rollouts(self, iteration: int) -> list[dict[str, Any]]:
        file = self.path / "rollouts" / f"step_{iteration:05d}.jsonl"
        return [json.loads(line) for line in whole_lines(file)]
