"""Ctrl-C and SIGTERM: stop a command cleanly, at the end of what it is doing.

`timeout`, batch systems and `poise experiment` send SIGTERM. Ctrl-C may have no effect: a command
in the background of a script starts with SIGINT ignored.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REPEATED_SIGNAL_SECONDS = 1.0  # `timeout` sends two signals: within this time they count as one


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt. Only for the main thread, as Python requires."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextmanager
def postpone_interrupts(activity: str) -> Iterator[Callable[[], bool]]:
    """Delay interrupts until the end of the block and print `activity` to stderr meanwhile.

    Yields a function that says whether an interrupt is waiting. A second signal takes effect at
    once. Signals that are ignored, or that end the process, keep doing so; threads other than the
    main one are not affected.
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
            notice = f"\npoise: {activity}; interrupt again to stop at once, without it\n"
            os.write(2, notice.encode())  # not print: a signal may interrupt a half-written buffer
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
