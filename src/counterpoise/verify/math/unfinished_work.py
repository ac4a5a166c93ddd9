r"""An answer may not leave operations undone that the reference has carried out.

    operations(given answer) must be a subset of operations(reference)

This is for references that are not plain numbers: `2\sqrt{3}`, `18+2\pi`, `(3, \frac{\pi}{2})`,
`2k+2`. Math-Verify would work out any expression, so the text is checked first. These kinds of
unfinished work are recognized:

    sum            a binary + or -, \pm
    product        2*3, 2(3), (..)(..), (..)^2
    whole_ratio    12/2, \frac{12}{2}: a division that comes out whole
    square_root    \sqrt{36}: the root of a square
    root_or_power  any \sqrt, any power
    factorial      n!, \binom
    rounding       \lfloor, \lceil, \bmod, |..|
    function       \sin, \log, \exp ...
    reduction      \sum, \prod, \int, \lim, \max ...
    equation       .. = ..

Roots and powers are closed forms, so they count only if the reference has no root, power, \pi or
e: `\sqrt{12}` may answer `2\sqrt{3}`, but not `(6, 1)`. For a reference with variables any
algebraically equal expression is right, so an answer is refused for two things only: a reduction
that the reference does not have (`\sum_{k=1}^n k` does not answer `\frac{n(n+1)}{2}`), or its
size: with more than twice the variables or twice the sums of the reference it repeats the question
(`19x + 1 - 4x - 81` does not answer `15x - 80`). One sum is always allowed, even if the reference
has none.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import isqrt

from counterpoise.verify.math.latex import normalize_latex

_ASSIGNMENT = re.compile(r"(?:\\[a-zA-Z]+ ?)?[a-zA-Z](?:_(?:\{[^{}]*\}|\w))?=(?!.*=)")
_TEXT = re.compile(r"\\text\{[^{}]*\}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_VARIABLE = re.compile(
    r"[a-zA-Z]|\\(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma"
    r"|tau|phi|varphi|chi|psi|omega|hbar|Delta|Omega|Phi|Theta|Lambda|Sigma|Gamma)(?![a-zA-Z])"
)
_WORK = {
    "sum": r"[\w)}\]!%] ?(?:[+-]|\\pm|\\mp)",
    "product": r"\d\*(?:\d|\\frac)|\)\*?\(|\)\^|\d\(-?[\d.]+\)|\\frac\{\d+\}\{\d+\}\*?(\d|\\frac)",
    "equation": r"=",
    "function": r"(?:sin|cos|tan|cot|sec|csc|log|ln|exp)(?![a-z])|\\lg",
    "factorial": r"!|\\[dt]?binom|\\choose",
    "rounding": r"\\[lr](?:floor|ceil)|\\[bp]?mod(?![a-z])|\|",
    "reduction": r"\\(?:sum|prod|i{1,3}nt|oint|lim|max|min|gcd|lcm|sup|inf|det|bigcup)(?![a-zA-Z])",
    "root_or_power": r"\\sqrt|\^",
}
_WORK_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _WORK.items()}
_CLOSED_FORM = re.compile(r"\\sqrt|\^|\\pi|(?<![a-zA-Z\\])e(?![a-zA-Z])")
_DIVISION = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}|(?<![\d.])(\d+)/(\d+)(?![\d.])", re.ASCII)
_ROOT = re.compile(r"\\sqrt\{?(\d+)", re.ASCII)


def leaves_work(given: str, reference: str) -> bool:
    r"""Whether the given answer leaves a kind of work undone that the reference does not.

    Example:
        >>> leaves_work("\\sqrt{3} + \\sqrt{3}", "2\\sqrt{3}")
        True
        >>> leaves_work("\\sqrt{12}", "2\\sqrt{3}")
        False
    """
    undone = find_operations(given) & _forbidden_operations(reference)
    if not undone <= find_operations(reference):
        return True
    given_variables, given_sums = _count_variables_and_sums(given)
    variables, sums = _count_variables_and_sums(reference)
    return variables > 0 and (given_variables > 2 * variables or given_sums > max(1, 2 * sums))


@lru_cache(maxsize=8192)
def find_operations(latex: str) -> frozenset[str]:
    r"""The kinds of unfinished work in the text; units, labels and a leading `x =` are ignored.

    Example:
        >>> sorted(find_operations("\\frac{12}{2} + 3^2"))
        ['root_or_power', 'sum', 'whole_ratio']
    """
    text = _strip_labels(latex)
    operations = {kind for kind, pattern in _WORK_PATTERNS.items() if pattern.search(text)}
    if any(_divides_evenly(m[1] or m[3], m[2] or m[4]) for m in _DIVISION.finditer(text)):
        operations.add("whole_ratio")
    if any(isqrt(int(m[1])) ** 2 == int(m[1]) for m in _ROOT.finditer(text)):
        operations.add("square_root")
    return frozenset(operations)


@lru_cache(maxsize=8192)
def _forbidden_operations(reference: str) -> frozenset[str]:
    """The kinds of work that an answer may not leave undone."""
    text = _strip_labels(reference)
    if _count_variables_and_sums(reference)[0]:
        return frozenset({"reduction"})
    kinds = frozenset(_WORK) | {"whole_ratio", "square_root"}
    return kinds - {"root_or_power"} if _CLOSED_FORM.search(text) else kinds


@lru_cache(maxsize=8192)
def _count_variables_and_sums(latex: str) -> tuple[int, int]:
    """(occurrences of variables, number of sums)."""
    text = _strip_labels(latex)
    letters = _VARIABLE.findall(_COMMAND.sub(_keep_greek_letter, text))
    # e and i are constants, not variables.
    return sum(letter not in "ei" for letter in letters), len(_WORK_PATTERNS["sum"].findall(text))


def _strip_labels(latex: str) -> str:
    """The text without units, labels and a leading `x =`."""
    return _TEXT.sub(" ", _ASSIGNMENT.sub("", normalize_latex(latex), count=1))


def _keep_greek_letter(command: re.Match[str]) -> str:
    """Keep a Greek letter, which is a variable; blank any other command."""
    return command.group() if _VARIABLE.fullmatch(command.group()) else " "


def _divides_evenly(top: str, bottom: str) -> bool:
    return int(bottom) != 0 and int(top) % int(bottom) == 0
