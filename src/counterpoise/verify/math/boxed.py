r"""Find the last balanced `\boxed{...}` of a response.

The last box is the one that opens last: the final one of several, and the inner one of
`\boxed{\boxed{6}}`. A box that was cut off by the length limit is not balanced and does not count.
`\{` and `\}` are characters, not braces. One pass over at most the last LONGEST_SEARCH characters,
so that no response, however long, takes more than a moment.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST_SEARCH = 200_000  # characters; some 50,000 tokens, and 0.1 s if they are nothing but boxes
# `\boxed{` opens a box. Other escapes match as two characters, so the brace of `\{` is skipped.
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


class Box(NamedTuple):
    r"""Where a balanced box is in the text, as character positions.

    Example:
        Box(command_start=3, start=10, end=12)       # "so \boxed{12}": the content is [start, end)
    """

    command_start: int  # where `\boxed{` begins
    start: int  # where the content begins
    end: int  # where the closing brace is


def extract_boxed(response: str) -> str | None:
    r"""The text inside the last balanced box, white space stripped from its ends.

    Example:
        >>> extract_boxed("so x = 4, and \\boxed{\\frac{1}{2}}")
        '\\frac{1}{2}'
        >>> extract_boxed("the answer is 4") is None
        True
    """
    last_box = max(find_boxes(response), default=None)
    return response[last_box.start : last_box.end].strip() if last_box else None


def find_boxes(response: str) -> list[Box]:
    """The balanced boxes near the end of a response, in the order in which they close."""
    closed_boxes: list[Box] = []
    # Start at the first box: looking at every brace of a long response would be slower.
    search_start = response.find("\\boxed", max(0, len(response) - LONGEST_SEARCH))
    if search_start < 0:
        return closed_boxes
    # (command_start, start) of a box; None for a plain brace
    open_braces: list[tuple[int, int] | None] = []
    for match in _BRACES.finditer(response, search_start):
        text = match.group()
        if text == "}":
            if open_braces and (open_box := open_braces.pop()):
                closed_boxes.append(Box(*open_box, match.start()))
        elif text == "{":
            open_braces.append(None)
        elif text.startswith("\\boxed"):
            open_braces.append(match.span())
    return closed_boxes
