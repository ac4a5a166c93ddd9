"""Ctrl-C and SIGTERM: stop a command cleanly, at the end of what it is doing.

`timeout`, batch systems and `poise experiment` send SIGTERM. Ctrl-C may have no effect: a command
in the background of a script starts with SIGINT ignored.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Handler = Callable[[int, Any], Any]
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


class PostponedInterrupts:
    """Signals inside `postpone_interrupts`: the first one waits, and prints `activity`."""

    def __init__(self, activity: str, previous_handlers: Mapping[int, Handler]) -> None:
        self.activity = activity
        self.previous_handlers = previous_handlers
        self.first_signal: tuple[int, float] | None = None  # its number, and when it came
        self.is_delivered = False  # the first signal

    def is_waiting(self) -> bool:
        return self.first_signal is not None and not self.is_delivered

    @contextmanager
    def delivered(self) -> Iterator[None]:
        """Inside, interrupts take effect at once again; one that has waited does so first."""
        try:
            self.restore_handlers()
            self.deliver_waiting()
            yield
        finally:
            self.postpone()

    def deliver_waiting(self) -> None:
        if self.first_signal is not None and not self.is_delivered:
            self.is_delivered = True
            signal_number, _ = self.first_signal
            self.previous_handlers[signal_number](signal_number, None)

    def postpone(self) -> None:
        self._set_handlers(dict.fromkeys(self.previous_handlers, self._record))

    def restore_handlers(self) -> None:
        self._set_handlers(self.previous_handlers)

    def _record(self, signal_number: int, frame: object) -> None:
        received_at = time.monotonic()
        if self.first_signal is None:
            self.first_signal = signal_number, received_at
            message = f"\npoise: {self.activity}; interrupt again to stop at once instead\n"
            # Not print: a signal may interrupt a half-written buffer.
            os.write(2, message.encode())
        elif received_at - self.first_signal[1] > REPEATED_SIGNAL_SECONDS:
            self.previous_handlers[signal_number](signal_number, None)

    def _set_handlers(self, handlers: Mapping[int, Handler]) -> None:
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)


@contextmanager
def postpone_interrupts(activity: str) -> Iterator[PostponedInterrupts]:
    """Delay interrupts until the end of the block; the first one prints `activity` to stderr.

    A further signal, more than REPEATED_SIGNAL_SECONDS after the first, takes effect at once.
    Signals without a Python handler (SIG_IGN, SIG_DFL) are left alone: SIGTERM is postponed only
    inside `sigterm_as_interrupt`, and outside it still ends the process. In a thread other than the
    main one nothing is postponed.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    signal_numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    current_handlers = {int(number): signal.getsignal(number) for number in signal_numbers}
    interrupts = PostponedInterrupts(
        activity,
        # SIG_IGN and SIG_DFL are not callable.
        {number: handler for number, handler in current_handlers.items() if callable(handler)},
    )
    interrupts.postpone()
    try:
        yield interrupts
    finally:
        interrupts.restore_handlers()
    interrupts.deliver_waiting()
