r"""response -> the content of its last balanced `\boxed{...}`, or None.

"Last" is the box that opens last: several boxes in a row leave the final one, and of
`\boxed{\boxed{6}}` the inner one. A box that a length limit cut off is not balanced and does
not count. `\{` and `\}` are characters, not braces. One pass, linear in any input.
"""

from __future__ import annotations

import re

# `\boxed{` opens a box; any other escaped character is skipped whole, so `\{` is no brace.
_MARKS = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def boxed(response: str) -> str | None:
    r"""The text inside the last balanced box, white space stripped from its ends.

    Example:
        >>> boxed("so x = 4, and \\boxed{\\frac{1}{2}}")
        '\\frac{1}{2}'
        >>> boxed("the answer is 4") is None
        True
    """
    first = response.find("\\boxed")
    if first < 0:
        return None
    last = (-1, -1)
    open_boxes: list[int] = []  # where each open brace's box begins; -1 for a brace of no box
    for mark in _MARKS.finditer(response, first):
        text = mark.group()
        if text == "}":
            if open_boxes:
                last = max(last, (open_boxes.pop(), mark.start()))
        elif text == "{":
            open_boxes.append(-1)
        elif text.startswith("\\boxed"):
            open_boxes.append(mark.end())
    start, end = last
    return response[start:end].strip() if start >= 0 else None
