"""A run folder: files are replaced atomically, logs grow by JSON lines. schema.py lists all files.

A resumed run first returns to its checkpoint: later lines and files are removed and written again,
so a folder never holds two versions of an iteration, nor half a line. Everything that is written
gets a checksum first (checksums.py); in model/ every file has one of its own. Checkpoints have a
manifest of digests instead.

What an iteration writes is flushed to disk by `sync`, before the checkpoint that relies on it.
Flushing every line would be slower and gain nothing: after a power cut, iterations since the last
checkpoint are repeated anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config, to_toml
from counterpoise.errors import PoiseError
from counterpoise.files import (
    append_line,
    atomic_write,
    cannot_write,
    explain_write_errors,
    find_leftovers,
    folder_lock,
    make_folder,
    remove_leftovers,
    sync_file,
    sync_folder,
)
from counterpoise.store.checksums import CHECKSUMS, CHECKSUMS_FILE, Checksum
from counterpoise.store.credit_tables import CREDIT
from counterpoise.store.logs import read_log
from counterpoise.store.rollout_files import read_records
from counterpoise.store.rollout_lines import encode_lines, rollout_lines
from counterpoise.store.schema import LOGS, STEP_FILES, step_file_name
from counterpoise.types import Group, TokenTrace

SCHEMA = 1
# A folder with a config.toml is a run; one with an imported.json is another trainer's run.
CONFIG = "config.toml"
IMPORTED = "imported.json"
ENCODED_TOKENS = "encoded_tokens"  # field of imported.json: tokens are not the sampled ones
VOCABULARY = "vocabulary.json"
CONTAMINATION = "contamination.json"
ENGINE = "engine.json"  # which engine makes the run, where it is not the native one
REPLAY = "replay.json"  # a run that `poise replay` wrote: virtual updates, nothing to resume
CHECKPOINTS = "checkpoints"
CHECKPOINT_PREFIX = "iteration_"  # checkpoints/iteration_00012
MODEL = "model"  # a folder with the trained model, written at the end
# They may get lines after the checkpoint of the iteration.
LOGS_AFTER_CHECKPOINT = ("evaluations", "benchmarks", "gaps")


def check_no_run(out: Path, content: str) -> None:
    """Refuse to write `content` into a folder that holds a run."""
    if is_run(out):
        raise PoiseError(f"{out} holds a run: choose another --out for {content}")


def is_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def is_imported(path: Path) -> bool:
    return (path / IMPORTED).is_file()


def has_plans(path: Path) -> bool:
    """Whether another trainer's run says which rollouts shared an optimizer step."""
    return is_imported(path) and (path / "plans.jsonl").is_file()


def checkpoint_iterations(path: Path) -> list[int]:
    """Iterations of the checkpoints of a run, by their names, in order.

    For readers that need nothing else of them: store/checkpoint.py imports torch.
    """
    names = [entry.name for entry in (path / CHECKPOINTS).glob(f"{CHECKPOINT_PREFIX}*")]
    numbers = [name.removeprefix(CHECKPOINT_PREFIX) for name in names]
    return sorted(int(number) for number in numbers if number.isdecimal())


class Engine(NamedTuple):
    """What trains a run.

    Example: Engine("trl", "1.16.0")
    """

    name: str
    version: str

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, "engine": self.name, "version": self.version})


NATIVE = Engine("native", "")


def _left_by_a_start(path: Path) -> set[Path]:
    """What a process leaves that was killed before it had written config.toml."""
    leftovers = set(find_leftovers(path, CONFIG)) | set(find_leftovers(path, ENGINE))
    return leftovers | {path / ENGINE} if (path / ENGINE).is_file() else leftovers


class RunFolder:
    """The files of one run: opening, writing, rewinding and reading them."""

    writable = True  # False if another process writes the folder and this one only reads
    checksums_from = 1  # first iteration with checksums; above 1 if release 0.2.0 began the run

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self._unsynced: set[Path] = set()  # written, but perhaps not yet on disk
        self.listeners: list[Callable[[str, dict[str, Any]], None]] = []  # (log, appended record)

    # -- opening -------------------------------------------------------------------------------

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Refuse a path that holds a run or other files, or is not a folder, before any work."""
        try:
            str(path).encode()
        # safetensors, which writes the model at the end, needs UTF-8: refuse the path now.
        except UnicodeEncodeError:
            raise PoiseError(f"{path} is not UTF-8: choose another --out") from None
        try:
            if (path / CONFIG).exists():
                raise PoiseError(
                    f"{path} already holds a run: choose another --out, or continue it with "
                    f"poise train --resume --out {path}"
                )
            if path.exists() and not path.is_dir():
                raise PoiseError(f"{path} is a file; --out must name a folder")
            if path.is_dir() and set(path.iterdir()) - _left_by_a_start(path):
                raise PoiseError(f"{path} is not empty and holds no run: choose another --out")
        except OSError as fault:
            raise PoiseError(f"{path} cannot be used: {fault.strerror}") from fault

    @classmethod
    def create(cls, path: Path, config: RunConfig, engine: Engine = NATIVE) -> RunFolder:
        """A new folder with config.toml, and before it engine.json: both, or no run."""
        cls.check_free(path)
        try:
            make_folder(path)
            # Without the lock, the leftovers may belong to a run that is just starting.
            with folder_lock(path):
                cls.check_free(path)
                for leftover in _left_by_a_start(path):
                    leftover.unlink()
                contents = {ENGINE: engine.to_json()} if engine != NATIVE else {}
                contents[CONFIG] = to_toml(config)
                for name, content in contents.items():
                    with atomic_write(path / name) as temporary:
                        temporary.write_text(content, encoding="utf-8")
        except OSError as fault:
            raise cannot_write(path, fault) from fault
        folder = cls(path)
        # All other checksums are written before their file, these after it: a process that is
        # killed in between must not leave a folder that has checksums.jsonl but no config.toml,
        # because `check_free` would refuse it to a new run.
        for name in contents:
            folder.write_checksum(name, Checksum.of_file(path / name), durable=True)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not path.exists():
            raise PoiseError(f"{path} does not exist: name the folder of a run")
        if is_imported(path):
            explanation = "was imported: it has rollouts, but no config.toml and no token trace"
            if has_plans(path):
                explanation = (
                    "was recorded inside another trainer, or imported from its files: it has no "
                    "config.toml"
                )
            raise PoiseError(f"{path} {explanation}; poise report {path} shows it")
        if not (is_run(path) or (path / CHECKPOINTS).is_dir()):
            subfolders = sorted(path.glob("*"))
            nested_runs = [child for child in subfolders if is_run(child) or is_imported(child)]
            hint = f"; {nested_runs[0]} holds one" if nested_runs else ""
            raise PoiseError(f"{path} holds no run: {CONFIG} is missing{hint}")
        return cls(path)

    def check_unused(self) -> None:
        """Refuse a new folder that another process resumed before this one had locked it."""
        names = {child.name for child in self.path.iterdir()}
        if names - {CONFIG, ENGINE, CHECKSUMS_FILE}:
            raise PoiseError(
                f"{self.path} was resumed by another process just after it was created: "
                f"continue it with poise train --resume --out {self.path}"
            )

    def write_config(self, config: RunConfig) -> None:
        with self.atomic_write(CONFIG) as temporary:
            temporary.write_text(to_toml(config), encoding="utf-8")

    def write_engine(self, engine: Engine) -> None:
        with self.atomic_write(ENGINE) as temporary:
            temporary.write_text(engine.to_json(), encoding="utf-8")

    def read_config(self) -> RunConfig:
        return load_config(self.path / CONFIG)

    # -- writing -------------------------------------------------------------------------------

    def explain_write_errors(self, name: str) -> AbstractContextManager[None]:
        """Turn disk errors while writing `name` into one clear line."""
        return explain_write_errors(self.path / name, self.path)

    @contextmanager
    def atomic_write(self, name: str, *, durable: bool = True) -> Iterator[Path]:
        """`files.atomic_write` for a file of the folder; `sync` flushes it if not `durable`."""
        path = self.path / name
        with self.explain_write_errors(name), atomic_write(path, durable=durable) as temporary:
            temporary.parent.mkdir(exist_ok=True)
            yield temporary
            self.write_checksum(name, Checksum.of_file(temporary), durable=durable)
        if not durable:
            self._unsynced.add(path)

    def write_checksum(
        self, name: str, checksum: Checksum, iteration: int | None = None, *, durable: bool = False
    ) -> None:
        """Append a line to checksums.jsonl; `name` as a path inside the folder.

        Without `iteration` it is read from the name: 12 for tokens/step_00012.parquet, and 0, the
        whole run, for a name without a number.
        """
        if iteration is None:
            number = Path(name).stem.removeprefix("step_")
            iteration = int(number) if number.isdecimal() else 0
        log_file = self.path / CHECKSUMS_FILE
        with self.explain_write_errors(CHECKSUMS_FILE):
            record = {"schema": SCHEMA, **checksum.to_record(iteration, name)}
            append_line(log_file, json.dumps(record))
            if durable:
                sync_file(log_file)
        self._unsynced.add(log_file)

    def write_model_checksums(self, model_folder: Path) -> None:
        """Checksums of model/, whose files are in `model_folder` until it is renamed."""
        # Some tokenizers have a subfolder: additional_chat_templates/.
        for file in sorted(path for path in model_folder.rglob("*") if path.is_file()):
            name = (MODEL / file.relative_to(model_folder)).as_posix()
            self.write_checksum(name, Checksum.of_file(file))
        sync_file(self.path / CHECKSUMS_FILE)

    def sync(self) -> None:
        """Flush everything written since the last call to disk."""
        for path in sorted(self._unsynced):
            with self.explain_write_errors(str(path.relative_to(self.path))):
                sync_file(path)
        for folder in sorted({self.path, *(path.parent for path in self._unsynced)}):
            with self.explain_write_errors(str(folder.relative_to(self.path))):
                sync_folder(folder)
        self._unsynced.clear()

    def append(self, log: str, record: dict[str, Any]) -> None:
        """Append a line to one of the LOGS."""
        log_file = self.path / f"{log}.jsonl"
        line = json.dumps({"schema": SCHEMA, **record})
        self.write_checksum(log_file.name, _line_checksum(line), record["iteration"])
        with self.explain_write_errors(log_file.name):
            append_line(log_file, line)
        self._unsynced.add(log_file)
        for listener in self.listeners:
            listener(log, record)

    def write_rollouts(self, iteration: int, groups: Sequence[Group]) -> None:
        content = encode_lines(rollout_lines(groups))
        with self.atomic_write(step_file_name("rollouts", iteration), durable=False) as temporary:
            temporary.write_bytes(content)

    def write_vocabulary(self, pieces: Sequence[str]) -> None:
        """The text of every token, so that readers of the folder need no tokenizer."""
        file_text = json.dumps({"schema": SCHEMA, "tokens": list(pieces)})
        with self.atomic_write(VOCABULARY) as temporary:
            temporary.write_text(file_text, encoding="utf-8")

    def write_table(self, kind: str, iteration: int, trace: TokenTrace) -> None:
        """Write tokens/step_00012.parquet, a row per trained token, or pushes/, a row per push."""
        table = pa.table(dict(trace.columns)).replace_schema_metadata(
            {"counterpoise_schema": str(SCHEMA)}
        )
        with self.atomic_write(step_file_name(kind, iteration), durable=False) as temporary:
            # Numbers hardly repeat: a dictionary would take six times as long, and more space.
            pq.write_table(table, temporary, use_dictionary=False, write_statistics=False)

    def rewind(self, iteration: int) -> None:
        """Remove what was written after `iteration` was finished.

        0 keeps the evaluation before training, -1 keeps nothing but files of the whole run.
        """
        kept_records = {
            log: [record for record in self.read(log) if record["iteration"] <= iteration]
            for log in LOGS
            if log != CHECKSUMS
        }
        # checksums.jsonl is replaced last: a process that is killed before that leaves checksums
        # without content, never content without checksums.
        kept_records[CHECKSUMS] = self._matching_checksums(kept_records, iteration)
        for log, records in kept_records.items():
            if (self.path / f"{log}.jsonl").exists():
                self._replace_log(log, records)
        for subfolder in (".", CHECKPOINTS, *STEP_FILES, CREDIT):
            remove_leftovers(self.path / subfolder)
        for subfolder in (*STEP_FILES, CREDIT):
            for file_iteration, path in self.step_files(subfolder).items():
                if file_iteration > iteration:
                    path.unlink()

    def _replace_log(self, log: str, records: Sequence[dict[str, Any]]) -> None:
        log_file = self.path / f"{log}.jsonl"
        with self.explain_write_errors(log_file.name), atomic_write(log_file) as temporary:
            temporary.write_text(
                "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
            )

    def _matching_checksums(
        self, records_by_log: dict[str, list[dict[str, Any]]], iteration: int
    ) -> list[dict[str, Any]]:
        """The checksums that stay when the folder is rewound to `iteration`.

        Lines of LOGS_AFTER_CHECKPOINT for that iteration were written after its checkpoint was
        flushed to disk, so a crash may have lost their checksums: these are computed again.
        """
        late_logs = [f"{log}.jsonl" for log in LOGS_AFTER_CHECKPOINT]
        kept_checksums = [
            record
            for record in self.read(CHECKSUMS)
            if record["iteration"] < iteration
            or (record["iteration"] == iteration and record["file"] not in late_logs)
            or self._is_of_whole_run(record)
        ]
        for log in LOGS_AFTER_CHECKPOINT:
            kept_checksums += [
                {
                    "schema": SCHEMA,
                    **_line_checksum(json.dumps(record)).to_record(iteration, f"{log}.jsonl"),
                }
                for record in records_by_log[log]
                if record["iteration"] == iteration
            ]
        return kept_checksums

    def _is_of_whole_run(self, checksum_record: dict[str, Any]) -> bool:
        """Whether a checksum is that of a file which stays whatever is rewound."""
        name, log_names = checksum_record["file"], {f"{log}.jsonl" for log in LOGS}
        is_single_file = checksum_record["iteration"] == 0 and name not in log_names
        return is_single_file and (self.path / name).is_file()

    # -- reading -------------------------------------------------------------------------------

    def read(self, log: str) -> list[dict[str, Any]]:
        """Records of one log; a last line cut off by a crash is left out."""
        return read_log(self.path / f"{log}.jsonl", log)

    def step_files(self, kind: str) -> dict[int, Path]:
        """The files of one of the STEP_FILES, by iteration."""
        path_by_number = {
            path.stem.removeprefix("step_"): path for path in (self.path / kind).glob("step_*")
        }
        # Other files in the folder are ignored.
        return {int(number): path for number, path in path_by_number.items() if number.isdecimal()}

    def read_rollouts(self, iteration: int) -> list[dict[str, Any]]:
        """The records of rollouts/; none if those of the iteration are not stored."""
        file = self.path / step_file_name("rollouts", iteration)
        if not file.is_file():
            return []
        return [record for _, record in read_records(file, ("group", "prompt_id"))]


def _line_checksum(line: str) -> Checksum:
    return Checksum.of_content(f"{line}\n".encode())
