r"""Compare wording: equal letters and digits, or |A & B| / |A | B| > 1/2 over word 10-grams.

A word is a run of a-z and 0-9 after lower-casing, or a single Chinese or Japanese character. A text
of fewer than ten words is a single gram. Neither test looks at what is between words (LaTeX braces,
dollar signs, punctuation), and that of letters ignores `\left` and `\right`: `$x^{2}$` and `x^2`
are the same, and so are 1+2 and 1-2.
"""

from __future__ import annotations

import re

NGRAM_WORDS = 10  # words of a gram
NEAR_COPY_JACCARD = 0.5  # a Jaccard index above it is a near copy

_BRACKET_SIZE = re.compile(r"\\(?:left|right)(?![a-zA-Z])")
_MEANING = re.compile(r"[^\W_]|[-+*/^=<>%×÷·−≤≥]|(?<=\d)\.(?=\d)")
_WORD = re.compile(r"[a-z0-9]+|[\u3040-\u30ff\u3400-\u9fff]")


def letters_and_digits(text: str) -> str:
    r"""The letters and digits of a text in lower case: equal for exact copies.

    Example:
        >>> letters_and_digits("Find $x^{2}$.")
        'findx2'
    """
    return "".join(filter(str.isalnum, _BRACKET_SIZE.sub("", text).casefold()))


def letters_digits_and_operators(text: str) -> str:
    r"""The same with operators and decimal points, in which problems of arithmetic differ.

    Example:
        >>> letters_digits_and_operators("What is 1.5 - 2?")
        'whatis1.5-2'
    """
    return "".join(_MEANING.findall(_BRACKET_SIZE.sub("", text).casefold()))


def split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def word_ngrams(text: str, n: int = NGRAM_WORDS) -> frozenset[tuple[str, ...]]:
    """All runs of `n` words; the whole text if it is shorter."""
    words = split_words(text)
    return frozenset(
        tuple(words[start : start + n]) for start in range(max(1, len(words) - n + 1)) if words
    )
