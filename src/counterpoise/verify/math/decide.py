r"""(answer, reference) -> right, wrong, or None where only computer algebra can tell.

    same text                        right
    the reference is a number        right if the answer is that number, evaluated   (numbers.py)
    the reference is \text{words}    right if the answer is those words
    both are 52_8, digits and base   right if both agree
    both are lists of numbers        right if the numbers are                        (lists.py)
    the answer leaves work undone    wrong                                 (unfinished_work.py)
    the answer is x = x, 0 = 0       wrong
    -y = .. for y = ..               wrong

Most answers of a training run are settled here, in microseconds and without a worker.
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


def decide_by_text(answer: str, gold: str) -> bool | None:
    r"""The verdict that the text alone allows.

    Example:
        >>> decide("\\frac{2}{4}", "0.5"), decide("5+6", "11")
        (True, False)
        >>> decide("\\sqrt{12}", "2\\sqrt{3}") is None
        True
    """
    if not answer or len(answer) > max(MAX_ANSWER_CHARACTERS, len(gold)):
        return False
    reference = _tidy_gold(gold)
    if _drop_spaces(normalize_latex(answer)) == _drop_spaces(reference):
        return True
    value = _gold_number(gold)
    if value is not None:
        stated = parse_number(answer)
        return stated is not None and numbers_agree(stated, value)
    if _WORDS.fullmatch(reference):
        return _plain_words(answer) == _plain_words(gold)
    based = _BASE.fullmatch(normalize_latex(answer)), _BASE.fullmatch(reference)
    if based[0] and based[1]:
        return based[0].groups() == based[1].groups()
    if leaves_work(answer, gold) or _is_tautology(answer) or _is_negated(answer, reference):
        return False
    return compare_lists(answer, gold)


@lru_cache(maxsize=8192)
def _tidy_gold(gold: str) -> str:
    return normalize_latex(gold)


@lru_cache(maxsize=8192)
def _gold_number(gold: str) -> StatedNumber | None:
    return parse_number(gold, bare_units=False)


def _drop_spaces(tidied: str) -> str:
    """Without the spaces that part no numbers: `4 A` is `4A`, `6 7` is not `67`."""
    return _BESIDE_LETTER.sub("", tidied.replace(", ", ","))


def _plain_words(latex: str) -> str:
    r"""`\text{(C)}`, `(C)` and `c` are one."""
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", normalize_latex(latex)).strip(" ().").casefold()


def _is_negated(answer: str, reference: str) -> bool:
    """-y = f against y = f: Math-Verify takes the left side for a name."""
    left, _, right = normalize_latex(answer).partition("=")
    wanted, _, value = reference.partition("=")
    return right == value != "" and left.lstrip("-") == wanted.lstrip("-") and left != wanted


def _is_tautology(latex: str) -> bool:
    sides = normalize_latex(latex).split("=")
    return len(sides) > 1 and len(set(sides)) == 1
