"""The lines of our own files that a call reaches: what guided fuzzing (guided.py) is guided by.

`sys.settrace` calls a function of ours for every function that Python enters, and, only in files
below `root`, for every line. A reader takes two to six times as long with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

LinePair = tuple[str, int, int]  # file, line before, line; the line before a function's first is 0
Tracer = Callable[[FrameType, str, Any], Any]
LONGEST_WORD = 40
PACKAGE = Path(__file__).parents[2] / "src" / "counterpoise"


class LineTrace:
    """Collects pairs of successive lines while a function runs.

    Example:
        trace = LineTrace()
        trace.watch(lambda: read_groups(path))
        trace.pairs                       {("store/rollout_files.py", 0, 41), ...}
    """

    def __init__(self, root: Path = PACKAGE) -> None:
        self.root = str(root.resolve()) + "/"
        self.pairs: set[LinePair] = set()
        self.words: set[str] = set()  # texts that the entered functions compare with or look up
        self._names: dict[CodeType, str] = {}  # file name below root; "" for files of others

    def watch(self, function: Callable[[], object]) -> None:
        """Call the function; its exceptions are let out."""
        sys.settrace(self._enter)
        try:
            function()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        code = frame.f_code
        name = self._names.get(code)
        if name is None:
            name = self._names[code] = self._name_file(code)
        if not name:
            return None
        add_pair, previous = self.pairs.add, 0

        def follow_lines(frame: FrameType, event: str, argument: Any) -> Tracer:
            nonlocal previous
            if event == "line":
                line = frame.f_lineno
                add_pair((name, previous, line))
                previous = line
            return follow_lines

        return follow_lines

    def _name_file(self, code: CodeType) -> str:
        if not code.co_filename.startswith(self.root):
            return ""
        self.words.update(_short_texts(code.co_consts[1:]))  # the first one is the docstring
        return code.co_filename.removeprefix(self.root)


def _short_texts(constants: Iterable[Any]) -> Iterable[str]:
    for constant in constants:
        if isinstance(constant, str) and 0 < len(constant) <= LONGEST_WORD:
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _short_texts(constant)


def count_lines(pairs: Iterable[LinePair]) -> int:
    return len({(file, line) for file, _, line in pairs})
