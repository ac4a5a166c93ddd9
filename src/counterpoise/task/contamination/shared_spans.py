r"""Mark the spans that two problem texts share.

Both texts are split into words, numbers, LaTeX commands and signs; the longest common runs are the
shared spans. A single sign or short word is not marked; a single number is.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

Span = tuple[str, bool]  # a piece of the text, and whether it is shared

_TOKEN = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|\d+(?:\.\d+)?|[^\s$\\{}]")
_TELLING = re.compile(r"\d|[a-zA-Z]{4,}")
MAX_TOKENS = 1_500  # of each text; the rest is not marked


def shared_spans(left: str, right: str) -> tuple[list[Span], list[Span]]:
    """Both texts as pieces that are shared or not.

    Example:
        >>> shared_spans("Find 12 apples.", "Take 12 pears")
        ([('Find ', False), ('12', True), (' apples.', False)], [('Take ', False), ('12', True), \
(' pears', False)])
    """
    token_matches = [list(_TOKEN.finditer(text))[:MAX_TOKENS] for text in (left, right)]
    tokens = [[match.group().casefold() for match in matches] for matches in token_matches]
    marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    blocks = SequenceMatcher(None, tokens[0], tokens[1], autojunk=False).get_matching_blocks()
    for left_start, right_start, size in blocks:
        shared_tokens = tokens[0][left_start : left_start + size]
        # A single comma or "the" in common means nothing.
        if size < 2 and not any(_TELLING.search(token) for token in shared_tokens):
            continue
        for side, token_start in enumerate((left_start, right_start)):
            matches = token_matches[side]
            marks[side].append(
                (matches[token_start].start(), matches[token_start + size - 1].end())
            )
    return _cut(left, marks[0]), _cut(right, marks[1])


def _cut(text: str, marks: list[tuple[int, int]]) -> list[Span]:
    pieces: list[Span] = []
    previous_end = 0
    for start, stop in marks:
        pieces += [(text[previous_end:start], False), (text[start:stop], True)]
        previous_end = stop
    pieces.append((text[previous_end:], False))
    return [piece for piece in pieces if piece[0]]
