"""Fuzzing guided by coverage: an input that reaches new lines is kept and changed further.

A batch belongs to one reader. It takes inputs that earlier batches kept, changes them, and keeps
those after which a line of ours was reached from a line it was never reached from before. What a
batch kept is one file in the state folder; a batch depends only on the seed and on the batches of
its reader before it, so a call that is interrupted goes on as it would have.

    STATE/guided/READER/00012.json      inputs, those kept, the new pairs of lines, faults
    STATE/guided/READER/fault-*.bin     inputs that a reader raised for, or hung on
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from cases import Case, Share, Subject
from fuzz import (
    DEEP,
    VALUES,
    Target,
    change_bytes,
    change_lines,
    change_value,
    limit_memory,
    make_corpus,
    mutate_table,
)
from line_trace import PACKAGE, LinePair, LineTrace, count_lines
from readers import make_readers, write_more_files
from server import run_in_fork
from tally import Tally

from counterpoise.errors import PoiseError

PHASE = "fuzzed by coverage"
FAULT = "fuzzed file, guided by coverage"
BATCH_INPUTS = 200
SLOW_READERS = ("audit", "serve", "math")  # these read a whole run, or every answer many times
SLOW_BATCH_INPUTS = 25
LARGEST_INPUT = 1 << 17
INPUT_SECONDS = 20.0  # a reader that takes longer hangs
RECENT_INPUTS = 8  # half of the changed inputs are among those kept last
TOML_VALUES = ("0", "-1", "1e999", "nan", '""', '"x"', "[]", "[[]]", "{}", "true", "2020-01-01")


@dataclass(slots=True)
class Progress:
    """What the batches of one reader did so far."""

    folder: Path
    batches: int = 0
    inputs: int = 0
    kept: list[bytes] = field(default_factory=list)
    pairs: set[LinePair] = field(default_factory=set)
    first_lines: int = 0  # lines that the reader reaches with the files as they were written
    tracebacks: int = 0
    hangs: int = 0

    def advance_to(self, batch: int) -> None:
        """Read what the batches before this one kept."""
        while self.batches < batch:
            path = self.folder / f"{self.batches:05d}.json"
            if path.exists():  # else the batch died, and kept nothing
                self.take(json.loads(path.read_text()))
            self.batches += 1

    def take(self, result: dict[str, Any]) -> None:
        self.first_lines = self.first_lines or result["first_lines"]
        self.inputs += result["inputs"]
        self.kept += [base64.b64decode(text) for text in result["kept"]]
        self.pairs.update((name, before, line) for name, before, line in result["pairs"])
        self.tracebacks += len(result["faults"])
        self.hangs += result["hangs"]

    @property
    def lines(self) -> int:
        return count_lines(self.pairs)


def guided_cases(subject: Subject, share: Share, state: Path) -> Iterator[Case]:
    """Without an end; all batches of a reader are of the same worker."""
    corpus = make_corpus(subject)
    write_more_files(corpus)
    readers = [
        (reader, Progress(state / "guided" / reader_slug(reader)))
        for number, reader in enumerate(make_readers(corpus))
        if number in share
    ]
    for batch in range(1 << 40):
        for reader, progress in readers:
            key = f"{progress.folder.name}/{batch}"
            seed = subject.rng(f"{PHASE} {key}").getrandbits(48)
            inject = partial(_run_batch, reader, corpus, progress, batch, seed)
            yield Case(PHASE, key, FAULT, inject)


def reader_slug(reader: Target) -> str:
    return re.sub(r"\W+", "-", reader.label)


def _run_batch(
    reader: Target, corpus: Path, progress: Progress, batch: int, seed: int, tally: Tally
) -> None:
    """A batch in a fork, whose result is in the state folder afterwards."""
    progress.folder.mkdir(parents=True, exist_ok=True)
    progress.advance_to(batch)
    result_file = progress.folder / f"{batch:05d}.json"
    result_file.unlink(missing_ok=True)
    path = corpus / reader.file
    original = path.read_bytes()

    def fuzz() -> int:
        is_slow = reader.label.startswith(SLOW_READERS)
        count = SLOW_BATCH_INPUTS if is_slow else BATCH_INPUTS
        result = fuzz_reader(reader, corpus, progress, seed, count)
        partial_file = result_file.with_suffix(".part")
        partial_file.write_text(json.dumps(result))
        partial_file.rename(result_file)
        return 0

    outcome = run_in_fork(fuzz, limit_memory)
    if not result_file.exists():  # it hung, or a library ended the process
        store_fault(progress.folder, path.read_bytes())
        path.write_bytes(original)
        result_file.write_text(json.dumps(empty_result(hangs=int(outcome.hung))))
        tally.tracebacks += not outcome.hung
        tally.note(f"{reader.label}: exit code {outcome.code}: {outcome.printed[-400:]}")
    result = json.loads(result_file.read_text())
    tally.injected += result["inputs"]
    tally.runs += result["inputs"]
    tally.hangs += result["hangs"]
    tally.tracebacks += len(result["faults"])
    for fault in result["faults"]:
        tally.note(fault)


def empty_result(hangs: int = 0) -> dict[str, Any]:
    return {"inputs": 0, "first_lines": 0, "kept": [], "pairs": [], "faults": [], "hangs": hangs}


def store_fault(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"fault-{hashlib.sha256(content).hexdigest()[:12]}.bin").write_bytes(content)


# -- a batch ---------------------------------------------------------------------------------------


def fuzz_reader(
    reader: Target,
    corpus: Path,
    progress: Progress,
    seed: int,
    count: int,
    root: Path = PACKAGE,
) -> dict[str, Any]:
    """Changed inputs for one reader; its file is put back afterwards."""
    rng, trace, result = random.Random(seed), LineTrace(root), empty_result()
    path = corpus / reader.file
    original = path.read_bytes()
    kept = [original, *progress.kept]
    reached = set(progress.pairs)
    try:
        # The unchanged file is read in every batch: its words are those that changes may use.
        read_input(reader, path, original, trace)
        words = sorted(trace.words)
        result["first_lines"] = count_lines(trace.pairs)
        fresh = trace.pairs - reached
        for _ in range(count):
            reached |= trace.pairs
            trace.pairs = set()
            content = change_input(kept, path, rng, words)
            fault = read_input(reader, path, content, trace)
            result["inputs"] += 1
            if fault:
                result["faults"].append(f"{reader.label}: {fault}")
                store_fault(progress.folder, content)
            if new_pairs := trace.pairs - reached:
                fresh |= new_pairs
                kept.append(content)
                result["kept"].append(base64.b64encode(content).decode())
    finally:
        path.write_bytes(original)
    result["pairs"] = sorted(fresh)
    return result


def read_input(reader: Target, path: Path, content: bytes, trace: LineTrace) -> str:
    """Read a changed file; the end of the traceback, if there is one."""
    path.write_bytes(content)
    signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS)
    try:
        trace.watch(lambda: reader.read(path))
    except PoiseError:
        pass
    except Exception:
        return traceback.format_exc()[-700:]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


# -- changes ---------------------------------------------------------------------------------------


def change_input(kept: list[bytes], path: Path, rng: random.Random, words: list[str]) -> bytes:
    """One of the kept inputs with one to four changes."""
    content = rng.choice(kept[-RECENT_INPUTS:] if rng.random() < 0.5 else kept)
    for _ in range(rng.choice((1, 1, 2, 4))):
        content = change_once(content, kept, path, rng, words)[:LARGEST_INPUT]
    return content


def change_once(
    content: bytes, kept: list[bytes], path: Path, rng: random.Random, words: list[str]
) -> bytes:
    if path.suffix == ".parquet" and rng.random() < 0.8:
        return change_table(content, path, rng, words)
    kind = rng.random()
    if kind < 0.15:
        return change_bytes(content, rng)
    if kind < 0.25:
        return change_lines(content, rng)
    if kind < 0.35:
        return join_inputs(content, rng.choice(kept), rng)
    if kind < 0.45 and words:
        place = rng.randrange(len(content) + 1)
        return content[:place] + rng.choice(words).encode(errors="replace") + content[place:]
    if path.suffix == ".toml":
        return change_toml(content, rng, words)
    return change_json(content, rng, words)


def join_inputs(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """The beginning of one input and the end of another, in whole lines."""
    head, tail = content.splitlines(keepends=True), other.splitlines(keepends=True)
    return b"".join(
        head[: rng.randrange(len(head) + 1)] + tail[rng.randrange(len(tail) + 1) :]
    )  # fmt: skip


def change_json(content: bytes, rng: random.Random, words: list[str]) -> bytes:
    """Another value somewhere in the file, if it is JSON as a whole, or in a random line."""
    try:
        return json.dumps(change_record(json.loads(content), rng, words)).encode()
    except (ValueError, RecursionError):
        pass
    lines = content.splitlines() or [b""]
    place = rng.randrange(len(lines))
    try:
        record = json.loads(lines[place])
    except (ValueError, RecursionError):
        return change_bytes(content, rng)
    is_deep = rng.random() < 0.01
    changed = DEEP if is_deep else json.dumps(change_record(record, rng, words))
    lines[place] = changed.encode()
    return b"\n".join(lines) + b"\n"


def change_record(record: Any, rng: random.Random, words: list[str]) -> Any:
    """A changed value; or a field with one of the reader's own words as name or value."""
    if not words or rng.random() < 0.6:
        return change_value(record, rng)
    word, other = rng.choice(words), rng.choice((*VALUES, *rng.choices(words, k=8)))
    holders = list(_holders(record))
    if not holders:
        return word
    holder = rng.choice(holders)
    if isinstance(holder, list):
        holder[rng.randrange(len(holder))] = word
    elif rng.random() < 0.5 or not holder:
        holder[word] = other
    else:
        holder[rng.choice(sorted(holder))] = word
    return record


def _holders(value: Any, depth: int = 0) -> Iterator[Any]:
    """The objects and the lists that are not empty, from the outermost on."""
    if depth > 20 or not isinstance(value, dict | list):
        return
    if isinstance(value, dict) or value:
        yield value
    for inner in list(value.values() if isinstance(value, dict) else value)[:50]:
        yield from _holders(inner, depth + 1)


def change_toml(content: bytes, rng: random.Random, words: list[str]) -> bytes:
    """Another value for an option, or another name."""
    lines = content.splitlines() or [b""]
    place = rng.randrange(len(lines))
    name, equals, value = lines[place].partition(b"=")
    texts = [text.encode() for text in (*TOML_VALUES, *(json.dumps(word) for word in words))]
    others = [line.partition(b"=")[2] for line in lines if b"=" in line]
    if not equals:
        lines[place] = f"[{rng.choice(words or ['x'])}]".encode(errors="replace")
    elif rng.random() < 0.15:
        lines[place] = json.dumps(rng.choice(words or ["x"])).encode() + b" =" + value
    else:
        lines[place] = name + b"= " + rng.choice((rng.choice(texts), rng.choice(others)))
    return b"\n".join(lines) + b"\n"


def change_table(content: bytes, path: Path, rng: random.Random, words: list[str]) -> bytes:
    path.write_bytes(content)
    try:
        mutate_table(path, rng, words)
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError):  # already no table
        return change_bytes(content, rng)
    return path.read_bytes()


# -- the table -------------------------------------------------------------------------------------


def read_progress(state: Path) -> list[Progress]:
    """What was done for each reader, by name."""
    progress_of_readers = []
    for folder in sorted((state / "guided").glob("*/")):
        progress = Progress(folder)
        batches = [int(path.stem) for path in folder.glob("[0-9]*.json")]
        progress.advance_to(max(batches, default=-1) + 1)
        progress_of_readers.append(progress)
    return progress_of_readers


def format_guided_table(progress_of_readers: list[Progress]) -> str:
    lines = [
        "|reader|inputs|kept|lines at first|lines at last|tracebacks|hangs|",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"|{progress.folder.name}|{progress.inputs:,}|{len(progress.kept):,}|"
        f"{progress.first_lines:,}|{progress.lines:,}|{progress.tracebacks}|{progress.hangs}|"
        for progress in progress_of_readers
    ]
    return "\n".join(lines)
