"""Server-sent events: a line for each run that grows, appears or goes.

One task looks at the runs twice a second, and only while somebody listens. A listener that does not
read loses the oldest of its events; the page asks for the run's state anyway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from counterpoise.errors import UNEXPECTED_VALUE_ERRORS
from counterpoise.serve.library import RunLibrary

POLL_SECONDS = 0.5
# Between comments of the stream, which keep a connection open and show when a listener has gone.
HEARTBEAT_SECONDS = 15.0
MOST_LISTENERS = 64
MOST_WAITING = 200


class EventFeed:
    """Tells listeners about changes of runs."""

    def __init__(self, library: RunLibrary) -> None:
        self.library = library
        self._listeners: set[asyncio.Queue[str]] = set()

    async def watch(self) -> None:
        """Look for changes until the task is cancelled."""
        while True:
            if self._listeners:
                try:
                    events = await asyncio.to_thread(self.find_changes)
                # The list of runs shows the fault; the watch goes on, so that pages are live again
                # once the fault is gone.
                except (*UNEXPECTED_VALUE_ERRORS, OSError):
                    events = []
                for event in events:
                    self._tell(f"data: {json.dumps(event)}\n\n")
            await asyncio.sleep(POLL_SECONDS)

    def find_changes(self) -> list[dict[str, Any]]:
        """An event for each run that changed since the last call."""
        events: list[dict[str, Any]] = []
        for name in sorted(self.library.refresh_changes()):
            reader = self.library.readers.get(name)
            events.append(
                {"run": name, "iterations": 0, "state": "gone"}
                if reader is None
                else {"run": name, "iterations": reader.last_iteration, "state": reader.state}
            )
        return events

    def _tell(self, message: str) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(message)

    @property
    def is_full(self) -> bool:
        return len(self._listeners) >= MOST_LISTENERS

    async def stream(self, request: Request) -> AsyncIterator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue(MOST_WAITING)
        self._listeners.add(queue)
        try:
            yield "retry: 1000\n\n"
            while not await request.is_disconnected():
                try:
                    yield await asyncio.wait_for(queue.get(), HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._listeners.discard(queue)
