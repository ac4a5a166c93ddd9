r"""Compare wording: equal symbols with meaning, or |A & B| / |A | B| > 1/2 over word 10-grams.

Letters, digits, operators, decimal points, commas between the numbers of a list and brackets that
decide the order of a calculation have a meaning; LaTeX braces, dollar signs, `\left`, other
punctuation, Markdown and the hyphens of words have none: `$x^{2}$` and `x^2` are the same, as are
1,000 and 1000; 1+2 and 1-2 are not, nor are (1,2) and 12, nor 2(3+4) and 2*3+4. A word is a run of
a-z and 0-9 after lower-casing, a single Chinese or Japanese character, or a run of two or more
letters of another script, such as Cyrillic. A text of fewer than ten words is a single gram. Grams
do not look at what is between words, except in texts that have the same grams: there, operators
count as words.
"""

from __future__ import annotations

import re

NGRAM_WORDS = 10  # words of a gram
NEAR_COPY_JACCARD = 0.5  # a Jaccard index above it is a near copy

_BRACKET_SIZE = re.compile(r"\\(?:left|right)(?![a-zA-Z])")
# A formula, or letters with hyphens between them that do not follow a LaTeX command's backslash.
_FORMULA_OR_HYPHENATED = re.compile(r"\$[^$]*\$|(?<![\\\w])[^\W\d_]+(?:-[^\W\d_]+)+(?!\w)")
_BULLET = re.compile(r"^\s*[-*+]\s+(?=[^\W\d_]{2})", re.MULTILINE)  # of a list, before a word
_EMPHASIS = re.compile(r"(?<!\w)\*+([^\W\d_]{2}[^*\n]*)\*+(?!\w)")  # **words**
# An operator or decimal point, a factorial, a comma that does not group thousands, and a bracket as
# `_normalise` writes it.
_OPERATOR = r"[-+*/^=<>%≤≥≠±√⟨⟩]|(?<=\d)\.(?=\d)|(?<=\d)!|(?<=\d),(?!\d{3}(?!\d))(?=\s?\d)"
# A bracketed calculation, innermost, that something is done with: 2(3+4), (3+4)/2, not "(3+4)".
_SUM = r"\(([^()]*[-+*/^][^()]*)\)"
_BRACKETED = re.compile(rf"(?<=[-+*/^\w)])\s?{_SUM}|{_SUM}(?=\s?[-+*/^])")
_MEANING = re.compile(rf"[^\W_]|{_OPERATOR}")
# Scripts from Greek to Mongolian, with their marks but without their punctuation, and Korean. One
# letter alone is left out: it is usually a symbol, as in 2π.
_OTHER_SCRIPT = (
    r"(?:(?![\u060c\u061b\u061f\u06d4\u0964\u0965])[\u0370-\u1cff\u1f00-\u1fff\uac00-\ud7a3]){2,}"
)
_WORD = re.compile(rf"[a-z0-9]+|[\u3040-\u30ff\u3400-\u9fff]|{_OTHER_SCRIPT}")
_WORD_OR_OPERATOR = re.compile(rf"{_WORD.pattern}|{_OPERATOR}")
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})


def letters_digits_and_operators(text: str) -> str:
    r"""The symbols of a text that have a meaning, in lower case: equal for exact copies.

    Example:
        >>> letters_digits_and_operators("What is $1.5 - x^{2}$, well-known?")
        'whatis1.5-x^2wellknown'
    """
    return "".join(_MEANING.findall(_normalise(text)))


def _normalise(text: str) -> str:
    """One spelling of each operator, ⟨⟩ for brackets that matter; no Markdown, no well-known."""
    text = _BRACKET_SIZE.sub("", text).casefold().translate(_SPELLINGS)
    text = _FORMULA_OR_HYPHENATED.sub(_without_hyphens_of_words, text)
    text = _BRACKETED.sub(lambda match: f"⟨{match[1] or match[2]}⟩", text)
    return _EMPHASIS.sub(r"\1", _BULLET.sub("", text))


def _without_hyphens_of_words(match: re.Match[str]) -> str:
    """`well-known` and `x-axis` lose their hyphens; formulas and x-y keep them."""
    is_word = not match[0].startswith("$") and max(map(len, match[0].split("-"))) > 1
    return match[0].replace("-", "") if is_word else match[0]


def split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def word_ngrams(text: str) -> frozenset[tuple[str, ...]]:
    """All runs of NGRAM_WORDS words; the whole text if it is shorter."""
    return _ngrams(split_words(text))


def jaccard_with_operators(text: str, other_text: str) -> float:
    """The Jaccard index of grams in which operators and decimal points are words.

    Example:
        >>> jaccard_with_operators("What is 12 + 5?", "What is 12 - 5?")
        0.0
    """
    grams, other_grams = (
        _ngrams(_WORD_OR_OPERATOR.findall(_normalise(one))) for one in (text, other_text)
    )
    return len(grams & other_grams) / max(1, len(grams | other_grams))


def _ngrams(words: list[str]) -> frozenset[tuple[str, ...]]:
    return frozenset(
        tuple(words[start : start + NGRAM_WORDS])
        for start in range(max(1, len(words) - NGRAM_WORDS + 1))
        if words
    )
