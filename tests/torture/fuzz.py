"""Mutated lines and files for everything that reads: an answer or one line, never a traceback.

The corpus is a real run with its data, and small files of other trainers. Mutations are of bytes,
of lines, of JSON values (types, nesting, sizes, half surrogates) and of parquet columns. Readers
are called in batches in forks with limited memory, so that a crash of a library counts as well. A
sample goes through the commands themselves.
"""

from __future__ import annotations

import datetime
import json
import random
import resource
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cases import Case, Share, Subject
from server import run_command, run_in_fork
from tally import Tally

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
from counterpoise.task.files_task import read_problems
from counterpoise.variants import IMPORTERS

sys.path.append(str(Path(__file__).parents[1] / "hosts" / "importing"))

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**31, 2**63, 10**400, 1e308, float("nan"), "", "x", "\ud800", "\x00",
    "\x1b[2J", "9" * 5000, [], [[]], [None], {}, {"a": 1}, [[1]], -0.5,
)  # fmt: skip
DEEP = "[" * 20_000
BATCH_LINES, BATCH_FILES, BATCH_CHECKS = 5000, 500, 50
MEMORY_LIMIT = 4 << 30  # bytes that a batch may map beyond what it starts with


@dataclass(frozen=True, slots=True)
class Target:
    """A file of the corpus and the function that reads it."""

    label: str
    file: str  # path inside the corpus
    read: Callable[[Path], Any]  # gets the path of the mutated file


def line_cases(subject: Subject, share: Share) -> Iterator[Case]:
    return _batches(subject, share, "fuzzed lines", "fuzzed line of a log", fuzz_lines)


def file_cases(subject: Subject, share: Share) -> Iterator[Case]:
    fault = "fuzzed file, for 14 readers"
    return _batches(subject, share, "fuzzed files", fault, partial(fuzz_files, checks=False))


def check_cases(subject: Subject, share: Share) -> Iterator[Case]:
    fault = "fuzzed file of a run, for poise check"
    return _batches(subject, share, "fuzzed checks", fault, partial(fuzz_files, checks=True))


def _batches(
    subject: Subject, share: Share, phase: str, fault: str, fuzz: Callable[[Path, int], int]
) -> Iterator[Case]:
    corpus = make_corpus(subject)
    for number in range(1 << 40):
        if number in share:
            seed = subject.rng(f"{phase} {number}").getrandbits(48)
            yield Case(
                phase, str(number), fault, partial(_run_batch, partial(fuzz, corpus, seed), corpus)
            )


def _run_batch(fuzz: Callable[[], int], corpus: Path, tally: Tally) -> None:
    """A batch in a fork; its result counts the cases and names the faults."""
    result_file = corpus / "result.json"
    result_file.unlink(missing_ok=True)
    outcome = run_in_fork(fuzz, limit_memory)
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


def limit_memory() -> None:
    """A reader that follows a wild number must not take the machine's memory."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_LIMIT, mapped + MEMORY_LIMIT))


# -- commands --------------------------------------------------------------------------------------

COMMANDS = (
    ("check", "{run}"),
    ("audit", "{run}"),
    ("look", "{run}"),
    ("report", "{run}", "--out", "{scratch}/page.html"),
    ("train", "--resume", "--out", "{run}"),
    ("plan", "{corpus}/plan.jsonl"),
    ("import", "{corpus}/rollouts.jsonl", "--from", "poise", "--out", "{scratch}/imported"),
)


def command_cases(subject: Subject, share: Share) -> Iterator[Case]:
    corpus = make_corpus(subject)
    for number in range(1 << 40):
        if number in share:
            inject = partial(_run_on_fuzzed, subject, corpus, subject.rng(f"command {number}"))
            yield Case("fuzzed commands", str(number), "fuzzed file, for 7 commands", inject)


def _run_on_fuzzed(subject: Subject, corpus: Path, rng: random.Random, tally: Tally) -> None:
    tally.injected += 1
    subject.clear_case()
    shutil.copytree(corpus, subject.case, dirs_exist_ok=True)
    command = rng.choice(COMMANDS)
    run = subject.case / "run"
    if "{run}" in "".join(command):
        files = sorted(path for path in run.rglob("*") if path.is_file())
        target = rng.choice([path for path in files if "model" not in path.parts])
    else:
        target = subject.case / ("plan.jsonl" if command[0] == "plan" else "rollouts.jsonl")
    if command[0] == "train":
        (run / "finished.json").unlink()
        target = target if target.exists() else run / "config.toml"
    change_file(target, rng)
    places = {"run": run, "corpus": subject.case, "scratch": subject.case / "scratch"}
    words = [word.format(**places) for word in command]
    outcome = run_in_fork(lambda: run_command(words), limit_memory)
    tally.count(outcome)
    if not outcome.is_clean:
        tally.note(f"poise {command[0]} with {target.name} changed")


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


def fuzz_files(corpus: Path, seed: int, *, checks: bool) -> int:
    """Mutated files for the readers, or for `poise check`; each is put back afterwards."""
    rng = random.Random(seed)
    faults = []
    targets = [target for target in make_targets(corpus) if (target.label == CHECK) == checks]
    count = BATCH_CHECKS if checks else BATCH_FILES
    for _ in range(count):
        target = rng.choice(targets)
        path = corpus / target.file
        original = path.read_bytes()
        try:
            change_file(path, rng)
            target.read(path)
        except PoiseError:
            pass
        except Exception:
            faults.append(f"{target.label}: {traceback.format_exc()[-700:]}")
        finally:
            path.write_bytes(original)
    _write_result(corpus, count, faults)
    return 0


def change_file(path: Path, rng: random.Random) -> None:
    if path.suffix == ".parquet" and rng.random() < 0.6:
        mutate_table(path, rng)
    else:
        path.write_bytes(mutate(path.read_bytes(), rng))


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
        lines[place] = json.dumps(change_value(record, rng)).encode()
    return b"\n".join(lines) + b"\n"


def change_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value, key=str))
        changed = dict(value)
        if rng.random() < 0.15:
            del changed[key]
        elif rng.random() < 0.1:
            changed[str(rng.choice(VALUES))] = changed.pop(key)
        else:
            changed[key] = change_value(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], change_value(value[place], rng), *value[place + 1 :]]
    return rng.choice(VALUES)


def mutate_table(path: Path, rng: random.Random, names: Sequence[str] = ()) -> None:
    """A parquet file with a column of another type, of other values, or without one.

    A column may also get one of `names`.
    """
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
    if names and rng.random() < 0.2:
        table = table.rename_columns([*table.column_names[:-1], rng.choice(names)])
    if rng.random() < 0.1:
        table = table.slice(0, 0)
    pq.write_table(table, path)


# -- the corpus ------------------------------------------------------------------------------------

CHECK = "poise check"


def make_corpus(subject: Subject) -> Path:
    """The corpus of this worker, written once."""
    corpus = subject.folder / "corpus"
    if not corpus.exists():
        write_corpus(subject.reference_folder(2) / "run", corpus)  # the variant with probes
    return corpus


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


def read_import(name: str, corpus: Path, folder: Path | None = None) -> Callable[[Path], Any]:
    """A reader of another trainer's file, or of all its files in a folder."""
    source = IMPORTERS.load(name)
    scratch = corpus / "scratch"
    scratch.mkdir(exist_ok=True)
    context = ImportContext(source.title, "", scratch)

    def read_steps(path: Path) -> Any:
        for file in scratch.iterdir():  # an import starts with an empty one
            file.unlink()
        files = source.find_files(folder) if folder else [path]
        return list(source.read_steps(files, context)) if files else []

    return read_steps


def make_targets(corpus: Path) -> list[Target]:
    run = corpus / "run"
    checkpoint_name = sorted(path.name for path in (run / "checkpoints").iterdir())[-1]

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
        Target("TRL", trl_path, read_import("trl", corpus)),
        Target("verl", verl_path, read_import("verl", corpus)),
        Target("own rollouts", "rollouts.jsonl", read_import("poise", corpus)),
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
        *(Target(CHECK, name, lambda path: check_run(run)) for name in in_run),
    ]
