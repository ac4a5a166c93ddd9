r"""Two texts -> what they have in common, to be marked.

Both are cut into words, numbers, LaTeX commands and signs; the longest common runs are shared
spans. A run of one sign or one short word says nothing and is left out, one number does not.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

Span = tuple[str, bool]  # a piece of the text, and whether it is shared

_TOKEN = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|\d+(?:\.\d+)?|[^\s$\\{}]")
_TELLING = re.compile(r"\d|[a-zA-Z]{4,}")
MAX_TOKENS = 1_500  # tokens; what is longer is not marked to its end


def shared_spans(left: str, right: str) -> tuple[list[Span], list[Span]]:
    """
    Example:
        >>> shared_spans("Find 12 apples.", "Take 12 pears")
        ([('Find ', False), ('12', True), (' apples.', False)], [('Take ', False), ('12', True), \
(' pears', False)])
    """
    found = [list(_TOKEN.finditer(text))[:MAX_TOKENS] for text in (left, right)]
    names = [[match.group().casefold() for match in matches] for matches in found]
    marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    blocks = SequenceMatcher(None, names[0], names[1], autojunk=False).get_matching_blocks()
    for at_left, at_right, size in blocks:
        run = names[0][at_left : at_left + size]
        if size < 2 and not any(_TELLING.search(name) for name in run):
            continue
        for side, start in enumerate((at_left, at_right)):
            matches = found[side]
            marks[side].append((matches[start].start(), matches[start + size - 1].end()))
    return _cut(left, marks[0]), _cut(right, marks[1])


def _cut(text: str, marks: list[tuple[int, int]]) -> list[Span]:
    pieces: list[Span] = []
    end = 0
    for start, stop in marks:
        pieces += [(text[end:start], False), (text[start:stop], True)]
        end = stop
    pieces.append((text[end:], False))
    return [piece for piece in pieces if piece[0]]
