"""Ctrl-C and SIGTERM: `timeout`, batch systems and the experiment stop a command by the latter.

To Ctrl-C a command may be deaf: in the background of a script it starts with SIGINT ignored.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REPEATED_SIGNAL_SECONDS = (
    1.0  # seconds in which a second signal is the first once more: `timeout` sends two
)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt; in the main thread only, as Python asks."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def postpone_interrupts(activity: str) -> Iterator[Callable[[], bool]]:
    """Inside, what would interrupt waits for the end of the block, and stderr is told what is being
    done meanwhile; a second signal does not wait. Yields whether one is waiting.

    Signals that are ignored, or that end the process, stay so; in other threads nothing changes.
    """
    arrived: list[tuple[int, float]] = []
    here = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if here else ()
    found = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in found.items() if callable(handler)}

    def wait(number: int, frame: object) -> None:
        now = time.monotonic()
        if not arrived:
            arrived.append((number, now))
            said = f"\npoise: {activity}; once more stops at once, without\n"
            os.write(2, said.encode())  # what is buffered may be half written
        elif now - arrived[0][1] > REPEATED_SIGNAL_SECONDS:
            before[signal.Signals(number)](number, None)

    for number in before:
        signal.signal(number, wait)
    try:
        yield lambda: bool(arrived)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        number = signal.Signals(arrived[0][0])
        before[number](number, None)
