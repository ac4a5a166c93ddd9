r"""Decide by the text alone whether an answer is right, where that is possible.

    same text                        right
    the reference is a number        right if the answer is that number, worked out  (numbers.py)
    the reference is \text{words}    right if the answer is those words
    both are 52_8, digits and base   right if both agree
    both are lists of numbers        right if the numbers agree                      (lists.py)
    the answer leaves work undone    wrong                                 (unfinished_work.py)
    the answer is x = x, 0 = 0       wrong
    -y = .. for y = ..               wrong
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


def decide_by_text(answer: str, gold: str) -> bool | None:
    r"""True or False, or None if only computer algebra can tell.

    Example:
        >>> decide_by_text("\\frac{2}{4}", "0.5"), decide_by_text("5+6", "11")
        (True, False)
        >>> decide_by_text("\\sqrt{12}", "2\\sqrt{3}") is None
        True
    """
    if not answer or len(answer) > max(MAX_ANSWER_CHARACTERS, len(gold)):
        return False
    reference = _normalize_gold(gold)
    if _drop_spaces(normalize_latex(answer)) == _drop_spaces(reference):
        return True
    gold_number = _gold_number(gold)
    if gold_number is not None:
        answer_number = parse_number(answer)
        return answer_number is not None and numbers_agree(answer_number, gold_number)
    if _WORDS.fullmatch(reference):
        return _plain_words(answer) == _plain_words(gold)
    answer_in_base = _BASE.fullmatch(normalize_latex(answer))
    gold_in_base = _BASE.fullmatch(reference)
    if answer_in_base and gold_in_base:
        return answer_in_base.groups() == gold_in_base.groups()
    # These three have to come before any algebra: Math-Verify would work out `5+6`, accept `x = x`,
    # and take the left side of `-y = f` for a name.
    if leaves_work(answer, gold) or _is_tautology(answer) or _is_negated(answer, reference):
        return False
    return compare_lists(answer, gold)


@lru_cache(maxsize=8192)
def _normalize_gold(gold: str) -> str:
    return normalize_latex(gold)


@lru_cache(maxsize=8192)
def _gold_number(gold: str) -> StatedNumber | None:
    return parse_number(gold, bare_units=False)


def _drop_spaces(normalized_latex: str) -> str:
    """Without the spaces next to letters: `4 A` becomes `4A`, but `6 7` does not become `67`."""
    return _BESIDE_LETTER.sub("", normalized_latex.replace(", ", ","))


def _plain_words(latex: str) -> str:
    r"""The words alone: `\text{(C)}`, `(C)` and `c` all become `c`."""
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", normalize_latex(latex)).strip(" ().").casefold()


def _is_negated(answer: str, reference: str) -> bool:
    """Whether the answer is -y = f and the reference y = f, or the other way round."""
    answer_name, _, answer_value = normalize_latex(answer).partition("=")
    gold_name, _, gold_value = reference.partition("=")
    return (
        answer_value == gold_value != ""
        and answer_name.lstrip("-") == gold_name.lstrip("-")
        and answer_name != gold_name
    )


def _is_tautology(latex: str) -> bool:
    """Whether all sides of an equation are the same text."""
    sides = normalize_latex(latex).split("=")
    return len(sides) > 1 and len(set(sides)) == 1
