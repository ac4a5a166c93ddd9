"""Mutated lines and files for everything that reads: an answer or one line, never a traceback.

The corpus is a real run with its data, and small files of other trainers. Mutations are of bytes,
of lines, of JSON values (types, nesting, sizes, half surrogates) and of parquet columns. Readers
run in forks, so that a crash of a library counts as well.
"""

from __future__ import annotations

import datetime
import json
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from server import run_in_fork
from tally import Budget, Tally

from counterpoise.batch.plan_file import rows_from_file
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError, explain_damage
from counterpoise.hosts.importing.formats import ImportContext
from counterpoise.report.texts import read_rollout_texts
from counterpoise.report.traces import read_pushes, read_trace, read_vocabulary
from counterpoise.store import checkpoint
from counterpoise.store.check.check_run import check_run
from counterpoise.store.finished import is_finished
from counterpoise.store.logs import parse_log_line
from counterpoise.store.rollout_files import read_groups
from counterpoise.store.schema import LOGS
from counterpoise.task.jsonl import read_problems
from counterpoise.variants import IMPORTERS

if TYPE_CHECKING:
    from phases import Torture

sys.path.append(str(Path(__file__).parents[1] / "hosts" / "importing"))

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**31, 2**63, 10**400, 1e308, float("nan"), "", "x", "\ud800", "\x00",
    "\x1b[2J", "9" * 5000, [], [[]], [None], {}, {"a": 1}, [[1]], -0.5,
)  # fmt: skip
DEEP = "[" * 20_000
BATCH_LINES, BATCH_FILES = 2000, 60


@dataclass(frozen=True, slots=True)
class Target:
    """A file of the corpus and the function that reads it."""

    label: str
    file: str  # path inside the corpus
    read: Callable[[Path], Any]  # gets the path of the mutated file


def fuzz_readers(torture: Torture, budget: Budget) -> list[Tally]:
    corpus = torture.folder / "corpus"
    shutil.rmtree(corpus, ignore_errors=True)
    write_corpus(torture.folder / "reference" / "run", corpus)
    lines, files = Tally("fuzzed line of a log"), Tally("fuzzed file, for 14 readers")
    batch = 0
    while budget.spend():
        batch += 1
        _run_batch(lines, lambda n=batch: fuzz_lines(corpus, torture.seed * 10**6 + n), corpus)
        _run_batch(files, lambda n=batch: fuzz_files(corpus, torture.seed * 10**6 + n), corpus)
    return [lines, files]


def _run_batch(tally: Tally, fuzz: Callable[[], int], corpus: Path) -> None:
    """A batch in a fork; its result counts the cases and names the faults."""
    result_file = corpus / "result.json"
    result_file.unlink(missing_ok=True)
    outcome = run_in_fork(fuzz)
    tally.hangs += outcome.hung
    if not result_file.exists():
        tally.tracebacks += 1
        tally.note(f"exit code {outcome.code}: {outcome.printed[-400:]}")
        return
    result = json.loads(result_file.read_text())
    tally.injected += result["cases"]
    tally.runs += result["cases"]
    tally.tracebacks += len(result["faults"])
    for fault in result["faults"]:
        tally.note(fault)


# -- batches ---------------------------------------------------------------------------------------


def fuzz_lines(corpus: Path, seed: int) -> int:
    """Mutated lines of every log."""
    rng = random.Random(seed)
    lines = {
        log: (corpus / "run" / f"{log}.jsonl").read_bytes().splitlines()
        for log in LOGS
        if (corpus / "run" / f"{log}.jsonl").exists()
    }
    lines = {log: log_lines for log, log_lines in lines.items() if log_lines}
    faults = []
    for _ in range(BATCH_LINES):
        log = rng.choice(sorted(lines))
        line = mutate(rng.choice(lines[log]), rng, json_only=True)
        try:
            parse_log_line(line.decode(errors="surrogateescape"), log)
        except (ValueError, RecursionError):
            pass
        except Exception:
            faults.append(f"{log}: {line[:200]!r}: {traceback.format_exc()[-400:]}")
    _write_result(corpus, BATCH_LINES, faults)
    return 0


def fuzz_files(corpus: Path, seed: int) -> int:
    """Mutated files for every reader; each is put back afterwards."""
    rng = random.Random(seed)
    faults = []
    targets = make_targets(corpus)
    for _ in range(BATCH_FILES):
        target = rng.choice(targets)
        path = corpus / target.file
        original = path.read_bytes()
        try:
            if path.suffix == ".parquet" and rng.random() < 0.6:
                mutate_table(path, rng)
            else:
                path.write_bytes(mutate(original, rng))
            target.read(path)
        except PoiseError:
            pass
        except Exception:
            faults.append(f"{target.label}: {traceback.format_exc()[-700:]}")
        finally:
            path.write_bytes(original)
    _write_result(corpus, BATCH_FILES, faults)
    return 0


def _write_result(corpus: Path, cases: int, faults: list[str]) -> None:
    result = {"cases": cases, "faults": [fault[:800] for fault in faults]}
    (corpus / "result.json").write_text(json.dumps(result))


# -- mutations -------------------------------------------------------------------------------------


def mutate(content: bytes, rng: random.Random, *, json_only: bool = False) -> bytes:
    """The content with one to three changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice((change_bytes, change_bytes, change_lines, change_json, change_json))
        content = (change_json if json_only and change is change_lines else change)(content, rng)
    return content


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    length = rng.choice((1, 1, 2, 8, 200))
    noise = bytes(rng.randrange(256) for _ in range(rng.choice((0, 1, 3))))
    if rng.random() < 0.1:
        return content[:place]
    return content[:place] + noise + content[place + length :]


def change_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    place = rng.randrange(len(lines))
    replacements = [[], [lines[place]] * 2, [rng.choice(lines)], [b"\n"], [b"[]\n"], [b"null\n"]]
    lines[place : place + 1] = rng.choice(replacements)
    return b"".join(lines)


def change_json(content: bytes, rng: random.Random) -> bytes:
    """Another value somewhere in a random line."""
    lines = content.splitlines() or [b""]
    place = rng.randrange(len(lines))
    try:
        record = json.loads(lines[place])
    except (ValueError, RecursionError):
        return change_bytes(content, rng)
    if rng.random() < 0.03:
        lines[place] = DEEP.encode()
    else:
        lines[place] = json.dumps(_change_value(record, rng)).encode()
    return b"\n".join(lines) + b"\n"


def _change_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value, key=str))
        changed = dict(value)
        if rng.random() < 0.15:
            del changed[key]
        elif rng.random() < 0.1:
            changed[str(rng.choice(VALUES))] = changed.pop(key)
        else:
            changed[key] = _change_value(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], _change_value(value[place], rng), *value[place + 1 :]]
    return rng.choice(VALUES)


def mutate_table(path: Path, rng: random.Random) -> None:
    """A parquet file with a column of another type, of other values, or without one."""
    table = pq.read_table(path)
    place = rng.randrange(table.num_columns)
    name, count = table.column_names[place], table.num_rows
    columns: list[Any] = [
        pa.nulls(count),
        pa.array(["x"] * count),
        pa.array([b"\xff"] * count),
        pa.array([[1, 2]] * count),
        pa.array([{"a": 1}] * count),
        pa.array([True] * count),
        pa.array([datetime.datetime(2020, 1, 1)] * count),
        pa.array([datetime.timedelta(1)] * count),
        pa.array([Decimal("1.5")] * count),
        pa.array([2**63 - 1] * count),
        pa.array([float("nan")] * count),
        pa.array([-1] * count, pa.int8()),
        pa.array(["x"] * count).dictionary_encode(),
    ]
    chosen = rng.choice([*columns, None])
    table = table.drop_columns([name]) if chosen is None else table.set_column(place, name, chosen)
    if rng.random() < 0.1:
        table = table.slice(0, 0)
    pq.write_table(table, path)


# -- the corpus ------------------------------------------------------------------------------------


def write_corpus(run: Path, corpus: Path) -> None:
    """A run without checksums, which would refuse most changes unread, and files of others."""
    from foreign import trl_file, verl_file

    shutil.copytree(run, corpus / "run")
    (corpus / "run" / "checksums.jsonl").rename(corpus / "checksums.jsonl")
    problems = [{"id": f"a{i}", "problem": f"{i} + 1", "answer": str(i + 1)} for i in range(4)]
    (corpus / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in problems))
    (corpus / "data.json").write_text(json.dumps(problems))
    chat = [{"role": "user", "content": "1 + 1"}]
    rows = [{"prompt": chat, "answer": "2", "extra_info": {"index": i}} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), corpus / "data.parquet")
    (corpus / "plan.jsonl").write_text(
        "".join(
            json.dumps({"prompt_id": f"p{i // 2}", "reward": i % 2, "num_tokens": 3}) + "\n"
            for i in range(6)
        )
    )
    shutil.copyfile(next((run / "rollouts").iterdir()), corpus / "rollouts.jsonl")
    trl_file(corpus / "trl")
    verl_file(corpus / "verl")


def make_targets(corpus: Path) -> list[Target]:
    run = corpus / "run"
    checkpoint_name = sorted(path.name for path in (run / "checkpoints").iterdir())[-1]

    scratch = corpus / "scratch"
    scratch.mkdir(exist_ok=True)

    def read_import(name: str) -> Callable[[Path], Any]:
        source = IMPORTERS.load(name)
        context = ImportContext(source.title, "", lambda note: None, scratch)
        return lambda path: list(source.read_steps([path], context))

    def shown(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        """A reader of pages and of the terminal, which explain unexpected values like this."""

        def read_and_explain(path: Path) -> Any:
            with explain_damage(path):
                return read(path)

        return read_and_explain

    def name_of(path: Path) -> str:
        return str(path.relative_to(corpus))

    verl_path = name_of(next(path for path in (corpus / "verl").rglob("*") if path.is_file()))
    trl_path = name_of(next(path for path in (corpus / "trl").rglob("*") if path.is_file()))
    rollouts = [name_of(path) for path in sorted((run / "rollouts").iterdir())]
    in_run = [
        name_of(path)
        for path in sorted(run.rglob("*"))
        if path.is_file() and "model" not in path.parts
    ]
    return [
        Target("read_groups", "rollouts.jsonl", read_groups),
        Target("poise plan", "plan.jsonl", rows_from_file),
        Target("data", "data.jsonl", lambda path: read_problems(str(path))),
        Target("data", "data.json", lambda path: read_problems(str(path))),
        Target("data", "data.parquet", lambda path: read_problems(str(path))),
        Target("config", "run/config.toml", load_config),
        Target("TRL", trl_path, read_import("trl")),
        Target("verl", verl_path, read_import("verl")),
        Target("own rollouts", "rollouts.jsonl", read_import("poise")),
        Target("tokens", "run/tokens/step_00001.parquet", shown(lambda path: read_trace(run, 1))),
        Target("pushes", "run/pushes/step_00001.parquet", shown(lambda path: read_pushes(run, 1))),
        Target("vocabulary", "run/vocabulary.json", lambda path: read_vocabulary(run)),
        Target("texts", rollouts[0], shown(lambda path: list(read_rollout_texts(path)))),
        Target("finished", "run/finished.json", lambda path: is_finished(run, 2)),
        Target(
            "checkpoint",
            f"run/checkpoints/{checkpoint_name}/manifest.json",
            lambda path: checkpoint.load_newest(run / "checkpoints", lambda note: None),
        ),
        *(Target("poise check", name, lambda path: check_run(run)) for name in in_run),
    ]
