r"""Extract the mathematics of a problem in any language: runs of symbols between words.

    "Let $x^{2}+1\le 5$ for all ..."   and   "设 x^2+1\leq 5 ..."   ->   x ^ 2 + 1 \le 5

Differences in typography are removed: `\dfrac`, `\left(`, braces, `\leqslant`, thin
spaces, 1,000. A run ends at a word. Inside dollar signs, and everywhere in a Chinese or Japanese
text, Latin letters are symbols (`xy` is x y); in other prose they are words, unless they are a few
capitals (`AB`). A single letter is not a run: "a" may be the article. The number words from two to
twenty (`three`, `Three`) count as numbers, because a variant that changes one is another problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_SPELLINGS = [
    (r"\\(?:begin|end)\s*\{[^}]*\}|\\tag\s*\{[^}]*\}|\\(?:q?quad|hspace\s*\{[^}]*\})", " "),
    (r"\\(?:text|mbox|textbf|textit|textrm)\s*\{[^{}]*\}", " ¶ "),  # words: they end a run
    (
        r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|math[a-z]+|operatorname|overline"
        r"|widehat|vec|rm|bf)(?![a-zA-Z])",
        " ",
    ),
    (r"\\d?f(?:rac)?(?![a-zA-Z])|\\[tc]frac(?![a-zA-Z])", r"\\frac "),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac \1 \2"),
    (r"\\leq(?:slant)?(?![a-zA-Z])|≤", r"\\le "),
    (r"\\geq(?:slant)?(?![a-zA-Z])|≥", r"\\ge "),
    (r"\\neq(?![a-zA-Z])|\\not\s*=|≠", r"\\ne "),
    (r"\\(?:cdot|times|ast)(?![a-zA-Z])|×|·", "*"),
    (r"\\(?:[lc]?dots|dotsc)(?![a-zA-Z])|…|\.\.+", r"\\dots "),
    (r"\\rightarrow(?![a-zA-Z])|→", r"\\to "),
    (r"\\mid(?![a-zA-Z])|\\[lr]?vert(?![a-zA-Z])", "|"),
    (r"\^\s*\{?\s*\\circ\s*\}?|°", r"\\degree "),
    (r"π", r"\\pi "),
    (r"\\[,!;: ]|~", ""),
    (r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))", ""),
    (r"\\([$%])", r"\1"),
]
_RULES = [(re.compile(pattern, re.DOTALL), replacement) for pattern, replacement in _SPELLINGS]
_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|$)", re.DOTALL)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_PROSE = re.compile(r"[a-z]{2,}[ ,]+[a-z]{2,}")  # between two dollar signs: sums of money
_SYMBOL = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|[a-zA-Z]+|[-+*/=<>!|^_¶]|[^\W\d_]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_NUMBER_NAMES = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_NUMBER_NAMES.split(), 2)}

SymbolRun = tuple[str, ...]


def is_cjk(text: str) -> bool:
    """Whether the text contains Chinese or Japanese."""
    return _CJK.search(text) is not None


def without_drawings(text: str) -> str:
    """The text without the source code of figures ([asy]), which many problems share."""
    return _DRAWING.sub(" ", text)


def symbol_runs(text: str) -> list[SymbolRun]:
    r"""The formulas and numbers of a text, in order.

    Example:
        >>> symbol_runs("If $\\dfrac{1}{2}x = 3$ and five apples")
        [('\\frac', '1', '2', 'x', '=', '3'), ('5',)]
    """
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    runs: list[SymbolRun] = []
    run: list[str] = []
    for letters_are_symbols, stretch in _stretches(text):
        for token in _SYMBOL.findall(stretch):
            symbols = _token_symbols(token, letters_are_symbols)
            if symbols is None:
                runs.append(tuple(run))
                run = []
            else:
                run += symbols
    runs.append(tuple(run))
    return [run for run in runs if len(run) > 1 or (run and run[0][0].isdigit())]


def numbers_in(formulas: list[SymbolRun]) -> list[str]:
    """All numbers, with repetitions."""
    return [symbol for run in formulas for symbol in run if symbol[0].isdigit()]


def _stretches(text: str) -> Iterator[tuple[bool, str]]:
    """(whether letters are symbols, text) for each stretch of formula or prose."""
    letters_are_symbols, end = is_cjk(text), 0
    for match in _FORMULA.finditer(text):
        content = match.group(match.lastindex or 0)
        if _PROSE.search(content):  # "$5 and pays $3": the dollar signs are money
            continue
        yield letters_are_symbols, text[end : match.start()]
        yield True, content
        end = match.end()
    yield letters_are_symbols, text[end:]


@lru_cache(maxsize=1 << 16)  # a training set has a million tokens, and few different ones
def _token_symbols(token: str, letters_are_symbols: bool) -> tuple[str, ...] | None:
    """The symbols that a token stands for; None for a word."""
    word = token.lower() if token.istitle() else token  # a sentence may begin with "Three"
    if word in _NUMBER_WORDS:
        return (_NUMBER_WORDS[word],)
    if not token.isascii():  # "¶" separates formulas
        return None if token == "¶" or is_cjk(token) else (token,)
    if not token.isalpha():
        return (token,)
    few_capitals = token.isupper() and len(token) <= 4
    return tuple(token) if letters_are_symbols or few_capitals or len(token) == 1 else None
