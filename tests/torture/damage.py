"""Flipped bits, cuts, zeros and lost lines in a finished run.

`poise check` reports the damage, unless a resumed run ends with the same files anyway.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cases import Case, Share, Subject
from server import differing_names
from tally import Tally

from counterpoise.errors import PoiseError
from counterpoise.store.check.check_run import check_run


def damage_cases(subject: Subject, share: Share) -> Iterator[Case]:
    for number in range(1 << 40):
        if number in share:
            inject = partial(_damage_run, subject, subject.rng(f"damage {number}"))
            yield Case("damage", str(number), "damaged file, then check and resume", inject)


def _damage_run(subject: Subject, rng: random.Random, tally: Tally) -> None:
    tally.injected += 1
    variant = rng.randrange(3)
    source = subject.reference_folder(variant)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    subject.clear_case()
    shutil.copytree(source, subject.case, dirs_exist_ok=True)
    target = subject.case / rng.choice(files).relative_to(source)
    kind = damage_file(target, rng)
    label = f"{kind} of {target.name}"
    try:
        is_reported = not check_run(subject.case / "run").is_whole
    except PoiseError:
        is_reported = True
    tally.runs += 1
    outcome = subject.server.resume_run(subject.case / "run")
    tally.count(outcome)
    if not is_reported and differing_names(subject.case, subject.reference(variant)):
        tally.blame(f"{label} was not reported")


def damage_file(path: Path, rng: random.Random) -> str:
    """Change a file at random; the name of the change."""
    content = path.read_bytes()
    kind = rng.choice(("flipped bit", "cut", "zeros", "lost line", "repeated line"))
    changed = bytearray(content)
    if not content:
        changed = bytearray(b"\0")
    elif kind == "flipped bit":
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        changed = changed[: rng.randrange(len(content))]
    elif kind == "zeros":
        start = rng.randrange(len(content))
        stop = min(len(content), start + rng.choice((1, 64, 4096)))
        changed[start:stop] = bytes(stop - start)
    else:
        lines = content.splitlines(keepends=True)
        place = rng.randrange(len(lines))
        lines[place : place + 1] = [] if kind == "lost line" else [lines[place]] * 2
        changed = bytearray(b"".join(lines))
    path.write_bytes(changed)
    return kind
