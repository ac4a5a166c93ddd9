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

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextmanager
def postpone_interrupts(activity: str) -> Iterator[Callable[[], bool]]:
    """Inside, what would interrupt waits for the end of the block, and stderr is told what is being
    done meanwhile; a second signal does not wait. Yields whether one is waiting.

    Signals that are ignored, or that end the process, stay so; in other threads nothing changes.
    """
    arrived: list[tuple[int, float]] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    previous_handlers = {
        number: handler for number, handler in handlers.items() if callable(handler)
    }

    def wait(number: int, frame: object) -> None:
        received_at = time.monotonic()
        if not arrived:
            arrived.append((number, received_at))
            notice = f"\npoise: {activity}; once more stops at once, without\n"
            os.write(2, notice.encode())  # what is buffered may be half written
        elif received_at - arrived[0][1] > REPEATED_SIGNAL_SECONDS:
            previous_handlers[signal.Signals(number)](number, None)

    for number in previous_handlers:
        signal.signal(number, wait)
    try:
        yield lambda: bool(arrived)
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    if arrived:
        number = signal.Signals(arrived[0][0])
        previous_handlers[number](number, None)
