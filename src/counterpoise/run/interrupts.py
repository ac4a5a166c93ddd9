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

    def interrupt(signal_number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextmanager
def postpone_interrupts(activity: str) -> Iterator[Callable[[], bool]]:
    """Delay interrupts until the end of the block; the first one prints `activity` to stderr.

    Yields a function that says whether an interrupt is waiting. A further signal, more than
    REPEATED_SIGNAL_SECONDS after the first, takes effect at once. Signals without a Python handler
    (SIG_IGN, SIG_DFL) are left alone: SIGTERM is postponed only inside `sigterm_as_interrupt`, and
    outside it still ends the process. In a thread other than the main one nothing is postponed.
    """
    received_signals: list[tuple[int, float]] = []  # (signal number, time); at most one
    in_main_thread = threading.current_thread() is threading.main_thread()
    signal_numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    current_handlers = {
        signal_number: signal.getsignal(signal_number) for signal_number in signal_numbers
    }
    # SIG_IGN and SIG_DFL are not callable.
    previous_handlers = {
        signal_number: handler
        for signal_number, handler in current_handlers.items()
        if callable(handler)
    }

    def record_signal(signal_number: int, frame: object) -> None:
        received_at = time.monotonic()
        if not received_signals:
            received_signals.append((signal_number, received_at))
            message = f"\npoise: {activity}; interrupt again to stop at once instead\n"
            # Not print: a signal may interrupt a half-written buffer.
            os.write(2, message.encode())
        elif received_at - received_signals[0][1] > REPEATED_SIGNAL_SECONDS:
            previous_handlers[signal.Signals(signal_number)](signal_number, None)

    for signal_number in previous_handlers:
        signal.signal(signal_number, record_signal)
    try:
        yield lambda: bool(received_signals)
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
    if received_signals:
        signal_number = signal.Signals(received_signals[0][0])
        previous_handlers[signal_number](signal_number, None)
