"""Faults that meet a run while it is running.

disk errors   a call fails with EIO, or the disk is full from there on
memory        an allocation fails, in Python, torch, Arrow or anything else that calls malloc
signals       SIGKILL, SIGTERM, or SIGSTOP and SIGCONT, at random times; also to the reward process
clock         the wall clock jumps by a year, forwards or backwards, and returns
two writers   another process resumes or starts a run in a folder that is being written
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from cases import Case, Share, Subject
from crashes import record_first_run
from images import arm, read_images
from server import WITH_REWARD_PROCESS, Outcome, run_command, run_in_fork
from tally import Tally

from counterpoise.store.check.check_run import check_run

DISK_ERRORS = {
    errno.EIO: "one call fails with an I/O error",
    errno.ENOSPC: "disk full from a call on",
}
WRITING_CALLS = ("open", "write", "mkdir", "truncate")
# Smaller allocations are of objects and of libraries' own small buffers: when those fail, Python
# (compile) and Rust (tokenizers) themselves cannot report it.
SMALLEST_ALLOCATION = 16_385
SHRINKING_MESSAGE = "from now on: out of memory"
# Ends inside libraries that have no way to report the fault: an abort (Rust's tokenizers and
# safetensors), and the exit of the C library when a new thread gets no thread-local data.
ABORTED = -signal.SIGABRT
NO_THREAD_DATA = (127, "cannot allocate memory for thread-local data: ABORT")
YEAR_SECONDS = 366 * 86_400
RUN_SECONDS = 0.6  # about how long a run takes; signals come within this time
LOCKED_MESSAGE = "is being written by another process"


# -- disk errors -----------------------------------------------------------------------------------


def disk_error_cases(subject: Subject, share: Share) -> Iterator[Case]:
    """Every call of a run once for each kind of error."""
    images = read_images(record_first_run(subject, 0, "images-0"))
    num_calls = sum(image["call"] != "half" for image in images)
    for place in subject.rng("disk errors").sample(range(num_calls), num_calls):
        if place in share:
            for number, fault in DISK_ERRORS.items():
                inject = partial(_fail_call, subject, number, place)
                yield Case("disk errors", f"{place}/{number}", fault, inject)


def _fail_call(subject: Subject, number: int, place: int, tally: Tally) -> None:
    tally.injected += 1
    run = subject.clear_case()
    hook = _failing_hook(number, place)
    tally.count(subject.server.start_run(run, before=lambda: arm(hook, subject.case)))
    subject.recover(tally, f"errno {number} at call {place}")


def _failing_hook(number: int, call_number: int) -> Callable[[str, str, int], int]:
    calls = iter(range(1 << 40))

    def hook(call: str, path: str, descriptor: int) -> int:
        current = next(calls)
        if number == errno.ENOSPC:
            return number if current >= call_number and call in WRITING_CALLS else 0
        return number if current == call_number else 0

    return hook


# -- memory ----------------------------------------------------------------------------------------


def memory_cases(subject: Subject, share: Share) -> Iterator[Case]:
    """Every allocation of a run, alone and with all that follow it."""
    num_allocations = _count_allocations(subject)
    for place in subject.rng("memory").sample(range(num_allocations), num_allocations):
        if place in share:
            for count in (1, 1000):
                inject = partial(_fail_allocations, subject, place, count)
                yield Case("memory", f"{place}/{count}", "an allocation fails", inject)


def _count_allocations(subject: Subject) -> int:
    counted = subject.folder / "allocations.txt"
    library = ctypes.CDLL(None)

    def run_and_count() -> int:
        library.torture_memory(ctypes.c_long(1 << 40), 0, ctypes.c_size_t(SMALLEST_ALLOCATION))
        words = ["train", str(subject.server.config_files[0]), "--out", str(subject.case / "run")]
        code = run_command(words)
        counted.write_text(str(library.torture_allocations()))
        return code

    subject.clear_case()
    outcome = run_in_fork(run_and_count)
    assert outcome.code == 0, outcome.printed
    return int(counted.read_text())


def _fail_allocations(subject: Subject, place: int, count: int, tally: Tally) -> None:
    tally.injected += 1
    run = subject.clear_case()
    library = ctypes.CDLL(None)
    outcome = subject.server.start_run(
        run,
        before=lambda: library.torture_memory(
            ctypes.c_long(place), ctypes.c_long(count), ctypes.c_size_t(SMALLEST_ALLOCATION)
        ),
    )
    code_without_thread_data, message = NO_THREAD_DATA
    ended_by_libc = outcome.code == code_without_thread_data and message in outcome.printed
    if outcome.code == ABORTED or ended_by_libc:
        tally.runs += 1  # as a kill: what counts is that nothing is lost
    else:
        tally.count(outcome)
    label = f"{count} allocations fail from {place} on"
    if SHRINKING_MESSAGE in outcome.printed:
        # Smaller passes from here on, as documented; the sizes are stored and sums may round.
        if outcome.code == 0 and (findings := check_run(run).findings):
            tally.blame(f"{label}: poise check: {findings[:2]}")
        return
    subject.recover(tally, label)


# -- clock -----------------------------------------------------------------------------------------


def clock_cases(subject: Subject, share: Share) -> Iterator[Case]:
    for number in range(1 << 40):
        if number in share:
            rng = subject.rng(f"clock {number}")
            seconds = rng.choice((-YEAR_SECONDS, YEAR_SECONDS))
            patience = int(2 ** rng.uniform(0, 10)) - 1
            inject = partial(_jump_clock, subject, patience, seconds)
            yield Case("clock", str(number), "wall clock jumps by a year and back", inject)


def _jump_clock(subject: Subject, patience: int, seconds: int, tally: Tally) -> None:
    tally.injected += 1
    run = subject.clear_case()
    library = ctypes.CDLL(None)
    outcome = subject.server.start_run(
        run, before=lambda: library.torture_clock(ctypes.c_long(patience), ctypes.c_long(seconds))
    )
    tally.count(outcome)
    if outcome.code != 0:
        tally.blame(f"clock {seconds:+} s: exit code {outcome.code}")
    (run / "finished.json").unlink(missing_ok=True)
    subject.recover(tally, f"clock {seconds:+} s")


# -- signals ---------------------------------------------------------------------------------------


def signal_cases(subject: Subject, share: Share) -> Iterator[Case]:
    fault = "SIGKILL, SIGTERM or SIGSTOP at a random time"
    for number in range(1 << 40):
        if number in share:
            inject = partial(_send_signal, subject, subject.rng(f"signal {number}"))
            yield Case("signals", str(number), fault, inject)


def _send_signal(subject: Subject, rng: random.Random, tally: Tally) -> None:
    tally.injected += 1
    run, output = subject.clear_case(), subject.folder / "output.txt"
    pid = subject.server.fork_start(run, output)
    time.sleep(rng.random() * RUN_SECONDS)
    kind = rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
    os.kill(pid, kind)
    if kind == signal.SIGSTOP:
        time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
    outcome = _wait(pid, output)
    # Before Python has a handler, SIGTERM ends any process.
    allowed = {signal.SIGKILL: (-9, 0), signal.SIGTERM: (130, 0, -15), signal.SIGSTOP: (0,)}
    if outcome.code not in allowed[kind]:
        tally.blame(f"{kind.name}: exit code {outcome.code}: {outcome.printed[-300:]}")
    tally.hangs += outcome.hung
    subject.recover(tally, kind.name)


def _wait(pid: int, output: Path) -> Outcome:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Outcome(code, output.read_text(errors="replace"))


def worker_signal_cases(subject: Subject, share: Share) -> Iterator[Case]:
    fault = "SIGKILL, or SIGSTOP and SIGCONT, to the reward process"
    for number in range(1 << 40):
        if number in share:
            inject = partial(_signal_worker, subject, subject.rng(f"worker {number}"))
            yield Case("worker signals", str(number), fault, inject)


def _signal_worker(subject: Subject, rng: random.Random, tally: Tally) -> None:
    """One or more signals to the reward process; the run must not notice."""
    tally.injected += 1
    run, output = subject.clear_case(), subject.folder / "output.txt"
    pid = subject.server.fork_start(run, output, WITH_REWARD_PROCESS)
    is_killed = False
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        for child in _children(pid):
            try:
                if rng.random() < 0.2 and not is_killed:
                    os.kill(child, signal.SIGKILL)
                    is_killed = True  # a second one would lose a reward, as documented
                else:
                    os.kill(child, signal.SIGSTOP)
                    time.sleep(rng.random() * 0.1)
                    os.kill(child, signal.SIGCONT)
            except ProcessLookupError:
                break
        time.sleep(rng.random() * 0.2)
    outcome = _wait(pid, output)
    tally.count(outcome)
    if outcome.code != 0:
        tally.blame(f"signals to the reward process: {outcome.printed[-300:]}")
    (run / "finished.json").unlink(missing_ok=True)
    subject.recover(tally, "signals to the reward process", WITH_REWARD_PROCESS)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


# -- two writers -----------------------------------------------------------------------------------


def two_writer_cases(subject: Subject, share: Share) -> Iterator[Case]:
    for number in range(1 << 40):
        if number in share:
            inject = partial(_write_twice, subject, subject.rng(f"two writers {number}"))
            fault = "two processes write one folder; the first may die"
            yield Case("two writers", str(number), fault, inject)


def _write_twice(subject: Subject, rng: random.Random, tally: Tally) -> None:
    """A second process meets a first one that is stopped; then the first goes on, or is killed."""
    tally.injected += 1
    run, output = subject.clear_case(), subject.folder / "output.txt"
    first = subject.server.fork_start(run, output)
    time.sleep(rng.random() * RUN_SECONDS)
    os.kill(first, signal.SIGSTOP)
    started = (run / "metrics.jsonl").exists()  # then the first one surely holds the lock
    ended = (run / "finished.json").exists()
    resumes = rng.random() < 0.7
    second = subject.server.resume_run(run) if resumes else subject.server.start_run(run)
    tally.count(second)
    if started and not ended and second.code != 2:
        tally.blame(f"a second writer was let in: {second.printed[-300:]}")
    if started and not ended and resumes and LOCKED_MESSAGE not in second.printed:
        tally.blame(f"the second writer was told something else: {second.printed[-300:]}")
    if rng.random() < 0.3:
        os.kill(first, signal.SIGKILL)  # its lock dies with it
    os.kill(first, signal.SIGCONT)
    outcome = _wait(first, output)
    if outcome.code not in (0, 2, -signal.SIGKILL) or outcome.has_traceback:
        tally.count(outcome)
    (run / "finished.json").unlink(missing_ok=True)
    subject.recover(tally, "two writers")
