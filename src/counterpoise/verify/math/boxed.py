r"""response -> the content of its last balanced `\boxed{...}`, or None.

"Last" is the box that opens last: several boxes in a row leave the final one, and of
`\boxed{\boxed{6}}` the inner one. A box that a length limit cut off is not balanced and does
not count. `\{` and `\}` are characters, not braces. One pass, linear in any input.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# `\boxed{` opens a box; any other escaped character is skipped whole, so `\{` is no brace.
_MARKS = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


class Box(NamedTuple):
    r"""A balanced box, in characters.

    Example:
        Box(mark=3, start=10, end=12)       # "so \boxed{12}": the content is [start, end)
    """

    mark: int  # where `\boxed{` begins
    start: int
    end: int  # where the closing brace is


def extract_boxed(response: str) -> str | None:
    r"""The text inside the last balanced box, white space stripped from its ends.

    Example:
        >>> boxed("so x = 4, and \\boxed{\\frac{1}{2}}")
        '\\frac{1}{2}'
        >>> boxed("the answer is 4") is None
        True
    """
    last = max(find_boxes(response), default=None)
    return response[last.start : last.end].strip() if last else None


def find_boxes(response: str) -> list[Box]:
    """Every balanced box, in the order they close."""
    found: list[Box] = []
    first = response.find("\\boxed")
    if first < 0:
        return found
    open_boxes: list[tuple[int, int] | None] = []  # (mark, start); None: a brace of no box
    for mark in _MARKS.finditer(response, first):
        text = mark.group()
        if text == "}":
            if open_boxes and (opened := open_boxes.pop()):
                found.append(Box(*opened, mark.start()))
        elif text == "{":
            open_boxes.append(None)
        elif text.startswith("\\boxed"):
            open_boxes.append(mark.span())
    return found
