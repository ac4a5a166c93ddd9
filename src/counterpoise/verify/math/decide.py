r"""Decide by the text alone whether the given answer is right, where that is possible.

The first line that fits decides:

    nothing, or too long             wrong
    same text                        right
    the reference is a number        right if the answer is that number, worked out  (numbers.py)
    the reference is \text{words}    right if the answer is those words
    both are 52_8, digits and base   right if both agree
    both are lists of numbers        right if the numbers agree                      (lists.py)
    the answer leaves work undone    wrong                                 (unfinished_work.py)
    the answer is x = x, 0 = 0       wrong
    answer -y = 2, reference y = 2   wrong, and the other way round
    anything else                    None: computer algebra has to decide    (equivalence.py)

Most answers of a training run are decided here, in microseconds and without a worker process.
"""

from __future__ import annotations

import re
from functools import lru_cache

from counterpoise.verify.math.latex import normalize_latex
from counterpoise.verify.math.lists import compare_lists
from counterpoise.verify.math.numbers import (
    MAX_ANSWER_CHARACTERS,
    StatedNumber,
    numbers_agree,
    parse_number,
)
from counterpoise.verify.math.unfinished_work import leaves_work

_BASE = re.compile(r"(-?\w+)_\{?(\d+)\}?", re.ASCII)
_BESIDE_LETTER = re.compile(r" (?=[a-zA-Z\\])|(?<=[a-zA-Z]) ")
_WORDS = re.compile(r"\\text\{[^{}]*[a-zA-Z][^{}]*\}")


def decide_by_text(given: str, reference: str) -> bool | None:
    r"""True or False, or None if only computer algebra can tell.

    Example:
        >>> decide_by_text("\\frac{2}{4}", "0.5"), decide_by_text("5+6", "11")
        (True, False)
        >>> decide_by_text("\\sqrt{12}", "2\\sqrt{3}") is None
        True
    """
    if not given or len(given) > max(MAX_ANSWER_CHARACTERS, len(reference)):
        return False
    normalized_given = normalize_latex(given)
    normalized_reference = _normalize_reference(reference)
    if _drop_spaces(normalized_given) == _drop_spaces(normalized_reference):
        return True
    reference_number = _reference_number(reference)
    if reference_number is not None:
        given_number = parse_number(given)
        return given_number is not None and numbers_agree(given_number, reference_number)
    if _WORDS.fullmatch(normalized_reference):
        return _plain_words(given) == _plain_words(reference)
    given_in_base = _BASE.fullmatch(normalized_given)
    reference_in_base = _BASE.fullmatch(normalized_reference)
    if given_in_base and reference_in_base:
        return given_in_base.groups() == reference_in_base.groups()
    list_verdict = compare_lists(given, reference)
    if list_verdict is not None:
        return list_verdict
    # These three have to come before any algebra: Math-Verify would work out `5+6`, accept `x = x`,
    # and take the left side of `-y = f` for a name.
    is_wrong = (
        leaves_work(given, reference)
        or _is_tautology(normalized_given)
        or _is_negated(normalized_given, normalized_reference)
    )
    return False if is_wrong else None


@lru_cache(maxsize=8192)
def _normalize_reference(reference: str) -> str:
    return normalize_latex(reference)


@lru_cache(maxsize=8192)
def _reference_number(reference: str) -> StatedNumber | None:
    return parse_number(reference, bare_units=False)


def _drop_spaces(normalized_latex: str) -> str:
    """Without the spaces next to letters: `4 A` becomes `4A`, but `6 7` does not become `67`."""
    return _BESIDE_LETTER.sub("", normalized_latex.replace(", ", ","))


def _plain_words(latex: str) -> str:
    r"""The words alone: `\text{(C)}`, `(C)` and `c` all become `c`."""
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", normalize_latex(latex)).strip(" ().").casefold()


def _is_negated(normalized_given: str, normalized_reference: str) -> bool:
    """Whether the given answer is -y = f and the reference y = f, or the other way round."""
    given_name, _, given_value = normalized_given.partition("=")
    reference_name, _, reference_value = normalized_reference.partition("=")
    return (
        given_value == reference_value != ""
        and given_name.lstrip("-") == reference_name.lstrip("-")
        and given_name != reference_name
    )


def _is_tautology(normalized_latex: str) -> bool:
    """Whether all sides of an equation are the same text."""
    sides = normalized_latex.split("=")
    return len(sides) > 1 and len(set(sides)) == 1
