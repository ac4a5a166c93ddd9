"""Kills and power cuts at every moment of a run, and of runs that resume after one.

A run is recorded once: what its disk would hold if it died before each system call that changes its
folder, or in the middle of a write (images.py). Then every such disk is resumed and compared.
Many moments leave equal disks; each of those is resumed once.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cases import Case, Share, Subject
from images import Image, Recorder, arm, read_images, restore_image
from server import WITH_REWARD_PROCESS, Outcome
from tally import Tally

PHASE = "crashes"
FIRST = {
    "kill": "process killed at a system call",
    "strict": "power cut, only flushed data left",
    "random": "power cut, anything else may be left",
}
AGAIN = {
    "kill": "killed again while resuming",
    "strict": "power cut while resuming, only flushed data left",
    "random": "power cut while resuming, anything else may be left",
}
NUM_VARIANTS = WITH_REWARD_PROCESS  # a reward process would only make recordings slower
TEMPORARY_NAME = re.compile(r"\.\d+\.(previous\.)?part")


def crash_cases(subject: Subject, share: Share, disks: set[str]) -> Iterator[Case]:
    """Without an end: recordings of first runs, then of resumed ones.

    `disks` holds the digests of disks that were resumed before.
    """
    for number in range(1 << 40):
        if number not in share:
            continue
        variant = number % NUM_VARIANTS
        if number < NUM_VARIANTS:
            store = record_first_run(subject, variant, f"images-{variant}")
            faults = FIRST
        else:
            store = record_resumed_run(subject, variant, number)
            faults = AGAIN
        images = list(read_images(store))
        rng = subject.rng(f"order {number}")
        for place in rng.sample(range(len(images)), len(images)):
            for kind, fault in faults.items():
                image = images[place][kind]
                key = f"{number}/{place}/{kind}"
                disk = disk_digest(image, variant)
                label = f"{key} ({images[place]['call']})"
                if disk in disks:
                    yield Case(PHASE, key, fault, count_only)
                else:
                    yield Case(
                        PHASE, key, fault, _resume(subject, image, store, label, variant), disk
                    )
        if number >= NUM_VARIANTS:
            shutil.rmtree(store)


def count_only(tally: Tally) -> None:
    """An equal disk was resumed before."""
    tally.injected += 1


def _resume(
    subject: Subject, image: Image, store: Path, label: str, variant: int
) -> Callable[[Tally], None]:
    def inject(tally: Tally) -> None:
        tally.injected += 1
        tally.disks += 1
        restore_image(image, store, subject.case)
        subject.recover(tally, label, variant)

    return inject


def disk_digest(image: Image, variant: int) -> str:
    """A digest of names and contents; process ids in temporary names do not count."""
    names = sorted((TEMPORARY_NAME.sub(".part", name), digest) for name, digest in image.items())
    return hashlib.sha256(json.dumps([variant, names]).encode()).hexdigest()[:24]


# -- recording -------------------------------------------------------------------------------------


def record_first_run(subject: Subject, variant: int, name: str) -> Path:
    """The images of a run, in a folder of that name; recorded once."""
    store = subject.folder / name
    if (store / "complete").exists():
        return store
    watched = subject.folder / "recorded"
    shutil.rmtree(watched, ignore_errors=True)
    watched.mkdir(parents=True)

    def start(recorder: Recorder) -> Outcome:
        return subject.server.start_run(
            watched / "run", variant, before=lambda: arm(recorder.hook, watched)
        )

    _record(subject, start, store)
    (store / "complete").touch()
    return store


def record_resumed_run(subject: Subject, variant: int, number: int) -> Path:
    """The images of a run that resumes after a crash: crashes after a crash."""
    source = record_first_run(subject, variant, f"images-{variant}")
    candidates = [
        record["kill"]
        for record in read_images(source)
        if any(name.endswith("/config.toml") for name in record["kill"])
    ]
    image = subject.rng(f"recording {number}").choice(candidates)
    watched = subject.folder / "recorded"
    restore_image(image, source, watched)

    def start(recorder: Recorder) -> Outcome:
        def watch() -> None:
            recorder.mark_all_flushed()
            arm(recorder.hook, watched)

        has_checkpoint = any("checkpoints/iteration" in name for name in image)
        return subject.server.resume_run(
            watched / "run", *([] if has_checkpoint else ["--from-start"]), before=watch
        )

    store = subject.folder / "images-resumed"
    _record(subject, start, store)
    return store


def _record(subject: Subject, start: Callable[[Recorder], Outcome], store: Path) -> None:
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True)
    outcome: Any = start(Recorder(subject.folder / "recorded", store, subject.seed))
    assert outcome.code == 0, outcome.printed
