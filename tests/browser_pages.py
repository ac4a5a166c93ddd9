"""Pages of a browser that tests use one after the other.

A new page starts a process of its own and compiles all scripts again: half a CPU second each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_SECONDS = 120  # a page that shows something at all shows it by then
free_pages: dict[tuple[Browser, str], list[Page]] = {}


@contextmanager
def borrowed_page(browser: Browser, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """An empty page with these options of a context, and what it will log and ask for.

    The page of a test that fails, or that changes the size of its window, is not used again.
    """
    unused = free_pages.setdefault((browser, repr(sorted(options.items()))), [])
    page = unused.pop() if unused else browser.new_context(**options).new_page()
    page.set_default_timeout(1000 * PATIENCE_SECONDS)
    size = page.viewport_size
    events: list[str] = []
    listeners: dict[Any, Any] = {
        "console": lambda message: events.append(message.text),
        "pageerror": lambda fault: events.append(str(fault)),
        "request": lambda request: events.append(request.url),
    }
    for name, listener in listeners.items():
        page.on(name, listener)
    yield page, events
    for name, listener in listeners.items():
        page.remove_listener(name, listener)
    page.mouse.move(0, 0)
    page.goto("about:blank")
    if page.viewport_size == size:
        unused.append(page)
