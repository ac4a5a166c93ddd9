"""The faults of a torture, one function each; every run after a fault is compared with one without.

kills         before every system call that changes the folder, and in the middle of writes
power cuts    the same moments, with what was not flushed lost
disk errors   a call fails with EIO, or the disk is full from there on
signals       SIGKILL, SIGTERM, or SIGSTOP and SIGCONT, at random times
damage        flipped bits, cuts, swaps and lost lines in a finished run
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from images import Recorder, arm, read_images, restore_image
from server import Outcome, RunServer, differing_names, folder_content
from tally import Budget, Tally

from counterpoise.errors import PoiseError
from counterpoise.store.check.check_run import check_run

WRITING_CALLS = ("open", "write", "mkdir", "truncate")


class Torture:
    """One server, its reference run, and a folder for cases."""

    def __init__(self, server: RunServer, folder: Path, seed: int) -> None:
        self.server, self.folder, self.seed = server, folder, seed
        self.rng = random.Random(seed)
        outcome = server.start_run(folder / "reference" / "run")
        assert outcome.code == 0, outcome.printed
        self.reference = folder_content(folder / "reference")
        self.case = folder / "case"

    # -- after a fault ---------------------------------------------------------------------------

    def recover(self, tally: Tally, label: str) -> None:
        """Resume the run of the case, or start it where nothing of it is left, and compare."""
        run = self.case / "run"
        outcome = self.server.resume_run(run)
        tally.count(outcome)
        if outcome.code == 2 and not _has_checkpoint(run):
            # Nothing was saved yet: the folder may be used again, or started again.
            if (run / "config.toml").exists():
                outcome = self.server.resume_run(run, "--from-start")
            else:
                shutil.rmtree(run, ignore_errors=True)
                outcome = self.server.start_run(run)
            tally.count(outcome)
        if outcome.code != 0:
            tally.blame(f"{label}: exit code {outcome.code}: {outcome.printed[-300:]}")
        elif names := differing_names(self.case, self.reference):
            tally.blame(f"{label}: {names[:4]} differ")
        elif self.rng.random() < 0.1 and (findings := check_run(run).findings):
            tally.blame(f"{label}: poise check: {findings[:2]}")

    # -- kills and power cuts ---------------------------------------------------------------------

    def record(self, start: Callable[[Recorder], Outcome], name: str) -> Path:
        """The images of a run, in a new folder."""
        store = self.folder / name
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir()
        outcome = start(Recorder(self.folder / "recorded", store, self.seed))
        assert outcome.code == 0, outcome.printed
        return store

    def record_first_run(self) -> Path:
        watched = self.folder / "recorded"
        shutil.rmtree(watched, ignore_errors=True)
        watched.mkdir()
        return self.record(
            lambda recorder: self.server.start_run(
                watched / "run", before=lambda: arm(recorder.hook, watched)
            ),
            "images",
        )

    def record_resumed_run(self, image: dict[str, str | None], store: Path) -> Path:
        """The images of the run that resumes an image: crashes after a crash."""
        watched = self.folder / "recorded"
        restore_image(image, store, watched)

        def watch(recorder: Recorder) -> None:
            recorder.mark_all_flushed()
            arm(recorder.hook, watched)

        return self.record(
            lambda recorder: self.server.resume_run(
                watched / "run", before=lambda: watch(recorder)
            ),
            "images-resumed",
        )

    def try_images(
        self, store: Path, kinds: dict[str, Tally], budget: Budget, seen: set[str]
    ) -> None:
        """Recover from every image; equal disks are tried once."""
        images = list(read_images(store))
        order = self.rng.sample(range(len(images)), len(images))
        for number in order:
            for kind, tally in kinds.items():
                if not budget.spend():
                    return
                image = images[number][kind]
                tally.injected += 1
                key = json.dumps(image, sort_keys=True)
                if key in seen:
                    continue
                seen.add(key)
                restore_image(image, store, self.case)
                self.recover(tally, f"{kind} at call {number} ({images[number]['call']})")

    def crash_everywhere(self, budget: Budget) -> list[Tally]:
        tallies = {
            "kill": Tally("process killed at a system call"),
            "strict": Tally("power cut, only flushed data left"),
            "random": Tally("power cut, anything else may be left"),
        }
        again = {
            "kill": Tally("killed again while resuming"),
            "strict": Tally("power cut while resuming, only flushed data left"),
            "random": Tally("power cut while resuming, anything else may be left"),
        }
        seen: set[str] = set()
        store = self.record_first_run()
        self.try_images(store, tallies, budget.split(0.6), seen)
        rest = budget.split(0.4)
        images = [image["kill"] for image in read_images(store)]
        while rest.spend():
            image = self.rng.choice(images)
            if not any(name.endswith("config.toml") for name in image):
                continue
            resumed_store = self.record_resumed_run(image, store)
            self.try_images(resumed_store, again, rest, seen)
        return [*tallies.values(), *again.values()]

    # -- disk errors ------------------------------------------------------------------------------

    def disk_errors(self, budget: Budget) -> list[Tally]:
        tallies = {
            errno.EIO: Tally("one call fails with an I/O error"),
            errno.ENOSPC: Tally("disk full from a call on"),
        }
        if not (self.folder / "images").exists():
            self.record_first_run()
        num_calls = sum(image["call"] != "half" for image in read_images(self.folder / "images"))
        for call_number in self.rng.sample(range(num_calls), num_calls):
            for number, tally in tallies.items():
                if not budget.spend():
                    return list(tallies.values())
                tally.injected += 1
                shutil.rmtree(self.case, ignore_errors=True)
                self.case.mkdir()
                hook = _failing_hook(number, call_number)
                outcome = self.server.start_run(
                    self.case / "run", before=lambda hook=hook: arm(hook, self.case)
                )
                tally.count(outcome)
                if outcome.has_traceback or outcome.code not in (0, 2):
                    tally.note(f"errno {number} at call {call_number}: {outcome.printed[-500:]}")
                if not (self.case / "run").exists():
                    (self.case / "run").mkdir()
                self.recover(tally, f"errno {number} at call {call_number}")
        return list(tallies.values())

    # -- signals ----------------------------------------------------------------------------------

    def signals(self, budget: Budget) -> list[Tally]:
        tally = Tally("SIGKILL, SIGTERM or SIGSTOP at a random time")
        while budget.spend():
            shutil.rmtree(self.case, ignore_errors=True)
            self.case.mkdir()
            pid = self.server.fork_start(self.case / "run", resume=False)
            time.sleep(self.rng.random() * 0.6)
            kind = self.rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
            os.kill(pid, kind)
            if kind == signal.SIGSTOP:
                time.sleep(0.05)
                os.kill(pid, signal.SIGCONT)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            tally.injected += 1
            # Before Python has a handler, SIGTERM ends any process.
            allowed = {signal.SIGKILL: (-9, 0), signal.SIGTERM: (130, 0, -15), signal.SIGSTOP: (0,)}
            if code not in allowed[kind]:
                tally.blame(f"{kind.name}: exit code {code}")
            (self.case / "run").mkdir(exist_ok=True)
            self.recover(tally, kind.name)
        return [tally]

    # -- damage -----------------------------------------------------------------------------------

    def damage(self, budget: Budget) -> list[Tally]:
        """Damage a finished run: `poise check` says so, unless a resumed run is the same anyway."""
        tally = Tally("damaged file, then check and resume")
        files = sorted(path for path in (self.folder / "reference").rglob("*") if path.is_file())
        while budget.spend():
            shutil.rmtree(self.case, ignore_errors=True)
            shutil.copytree(self.folder / "reference", self.case)
            target = self.case / self.rng.choice(files).relative_to(self.folder / "reference")
            kind = damage_file(target, self.rng)
            label = f"{kind} of {target.name}"
            tally.injected += 1
            tally.runs += 1
            try:
                is_reported = not check_run(self.case / "run").is_whole
            except PoiseError:
                is_reported = True
            outcome = self.server.resume_run(self.case / "run")
            tally.count(outcome)
            if not outcome.is_clean:
                tally.note(f"{label}: {outcome.printed[-300:]}")
            if not is_reported and differing_names(self.case, self.reference):
                tally.blame(f"{label} was not reported")
        return [tally]


def damage_file(path: Path, rng: random.Random) -> str:
    """Change a file at random; the name of the change."""
    content = path.read_bytes()
    kind = rng.choice(("flipped bit", "cut", "zeros", "lost line", "repeated line"))
    changed = bytearray(content)
    if kind == "flipped bit" or not content:
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


def _failing_hook(number: int, call_number: int) -> Callable[[str, str, int], int]:
    calls = iter(range(1 << 40))

    def hook(call: str, path: str, descriptor: int) -> int:
        current = next(calls)
        if number == errno.ENOSPC:
            return number if current >= call_number and call in WRITING_CALLS else 0
        return number if current == call_number else 0

    return hook


def _has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("iteration_*/manifest.json"))
