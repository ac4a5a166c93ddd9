r"""Same text: equal letters and digits. Nearly: |A & B| / |A | B| > 1/2 over word 10-grams.

A word is a run of a-z and 0-9 after lower-casing; a Chinese or Japanese character is a word of its
own. A text of fewer than ten words is one gram. What stands between words (LaTeX braces, dollar
signs, punctuation) counts for neither, nor do `\left` and `\right` for the first: `$x^{2}$` and
`x^2` are the same, and so are 1+2 and 1-2.
"""

from __future__ import annotations

import re

NGRAM_WORDS = 10  # words of a gram
NEAR_COPY_JACCARD = 0.5  # a Jaccard index above it is a near copy

_BRACKET_SIZE = re.compile(r"\\(?:left|right)(?![a-zA-Z])")
_WORD = re.compile(r"[a-z0-9]+|[\u3040-\u30ff\u3400-\u9fff]")


def letters_and_digits(text: str) -> str:
    r"""What two copies share.

    Example:
        >>> letters("Find $x^{2}$.")
        'findx2'
    """
    return "".join(filter(str.isalnum, _BRACKET_SIZE.sub("", text).casefold()))


def split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def word_ngrams(text: str, n: int = NGRAM_WORDS) -> frozenset[tuple[str, ...]]:
    """All runs of `n` words; the whole text if it is shorter."""
    found = split_words(text)
    return frozenset(tuple(found[i : i + n]) for i in range(max(1, len(found) - n + 1)) if found)


def jaccard(left: frozenset[tuple[str, ...]], right: frozenset[tuple[str, ...]]) -> float:
    """|A & B| / |A | B|; 0 for two empty sets."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared) if shared else 0.0
