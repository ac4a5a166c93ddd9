"""Hostile models (hostile_models.py) through every command that takes a model.

One or two things of a working model are changed at random, then a command gets it. It must answer
in one line with exit code 2, or work; without a traceback, in bounded time and memory, without
running what is in the folder, and without changing a file that was there before.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cases import Case, Share, Subject
from fuzz import limit_memory
from hostile_models import EXECUTED, KINDS, gguf_path, write_good_model
from server import Outcome, run_command, run_in_fork
from tally import Tally

PHASE = "hostile models"
FAULT = "hostile model, for 4 commands"
MOST_MEMORY = 3 << 30  # bytes, resident; the small model takes 0.4 GiB
COMMANDS = {
    "train": ("train", "{config}", "--out", "{out}", "-s", "model.name={model}"),
    "eval": (
        "eval", "{model}", "--bench", "good", "--data", "{data}", "--out", "{out}",
        "--max-tokens", "4", "--samples", "1", "--device", "cpu",
    ),
    "replay": (
        "replay", "{run}", "--model", "{model}", "--out", "{out}", "--template", "auto",
        "--iterations", "1", "--device", "cpu",
    ),
    "warmup": (
        "warmup", "{config}", "--out", "{out}", "-s", "model.name={model}", "-s",
        "warmup.steps=1", "-s", "warmup.batch=2",
    ),
}  # fmt: skip


def hostile_cases(subject: Subject, share: Share) -> Iterator[Case]:
    """Without an end; each kind of change alone with each command, then two at a time."""
    good = subject.folder / "good"
    if not good.exists():
        good.mkdir()
        write_good_model(good)
        problems = [{"problem": f"{i} + 1", "answer": str(i + 1)} for i in range(2)]
        (good / "good.jsonl").write_text("".join(json.dumps(line) + "\n" for line in problems))
    for number in range(1 << 40):
        if number in share:
            command = sorted(COMMANDS)[number % len(COMMANDS)]
            kinds = [sorted(KINDS)[number // len(COMMANDS) % len(KINDS)]]
            rng = subject.rng(f"{PHASE} {number}")
            if number >= len(COMMANDS) * len(KINDS) and rng.random() < 0.5:
                kinds.append(rng.choice(sorted(KINDS)))
            inject = partial(_give_model, subject, good, command, kinds, rng)
            yield Case(PHASE, f"{number} {command}", FAULT, inject)


def _give_model(
    subject: Subject,
    good: Path,
    command: str,
    kinds: list[str],
    rng: random.Random,
    tally: Tally,
) -> None:
    tally.injected += 1
    subject.clear_case()
    label = f"poise {command} with {' and '.join(kinds)}"
    model = make_hostile(good, subject.case, kinds, rng)
    before = file_digests(subject.case)
    places = {
        "model": model,
        "config": subject.server.config_files[0],
        "out": subject.case / "out",
        "data": good,
        "run": subject.reference_folder() / "run",
    }
    outcome = run_command_on(subject, [word.format(**places) for word in COMMANDS[command]])
    tally.count(outcome)
    if complaint := judge(outcome, subject.case, before):
        tally.blame(f"{label}: {complaint}")
    elif outcome.code == 0 and any(not KINDS[kind].is_harmless for kind in kinds):
        tally.blame(f"{label}: it was accepted")
    elif not outcome.is_clean:
        tally.note(label)


def make_hostile(good: Path, case: Path, kinds: list[str], rng: random.Random) -> Path:
    """A copy of the model with these changes; the name for a command."""
    folder = case / "model"
    shutil.copytree(good, case, dirs_exist_ok=True)
    for position, kind in enumerate(kinds):
        # A second change may meet a file that the first one has removed or made unreadable.
        try:
            KINDS[kind].change(folder, rng)
        except Exception:
            if position == 0:
                raise
    return folder if folder.is_dir() else gguf_path(folder)


def run_command_on(subject: Subject, words: list[str]) -> Outcome:
    def run() -> int:
        code = run_command(words)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if used > MOST_MEMORY:
            print(f"MEMORY: {used >> 20} MiB")
        return code

    def prepare() -> None:
        subject.server.restore_slow_parts()
        limit_memory()

    return run_in_fork(run, prepare)


def judge(outcome: Outcome, case: Path, before: dict[str, str]) -> str:
    """What is wrong with the answer of a command; "" if nothing is."""
    if (case / EXECUTED).exists():
        return "code of the model was run"
    if "MEMORY:" in outcome.printed:
        return outcome.printed[-60:]
    after = file_digests(case)
    if changed := [name for name, digest in before.items() if after.get(name) != digest]:
        return f"{changed[0]} was changed"
    if outcome.code == 2 and sum(map(is_message, outcome.printed.splitlines())) != 1:
        return f"not one line: {outcome.printed[-300:]}"
    return ""


def is_message(line: str) -> bool:
    return line.startswith("poise: ")


def file_digests(case: Path) -> dict[str, str]:
    """Digests of the plain files; links and pipes by their kind."""
    digests = {}
    for path in case.rglob("*"):
        is_plain = path.is_file() and not path.is_symlink()
        content = path.read_bytes() if is_plain else str(path.is_symlink()).encode()
        digests[str(path.relative_to(case))] = hashlib.sha256(content).hexdigest()
    return digests
