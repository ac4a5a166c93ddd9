r"""(a, b] and a, b, c: two lists are equal if their entries are; numbers settle most of them.

    ordered     (6, 31)  [0, 1)     same brackets, and entry k answers entry k
    unordered   3, 5, 7   \{3, 5\}   the same numbers in some order

An entry that the reference states as a number has to be one, evaluated (numbers.py). Fewer numbers
than the reference has are too few: 1, 1 is not 1. Where entries are neither numbers nor the same
text, the verdict is None: Math-Verify's to give.
"""

from __future__ import annotations

import re

from counterpoise.verify.math.latex import normalize_latex
from counterpoise.verify.math.numbers import numbers_agree, parse_number

_NESTING = re.compile(r"\\?[{(\[]|\\?[})\]]|,")


def compare_lists(answer: str, gold: str) -> bool | None:
    """The verdict on two lists; None if they are not both lists of one kind.

    Example:
        >>> compare_lists("7, 5, 3", "3, 5, 7"), compare_lists("(1, 2]", "(1, 3]")
        (True, False)
    """
    left, right = split_entries(answer) or ("", [answer]), split_entries(gold)
    if right is None or left[0] != right[0]:
        return None
    brackets, answers, golds = left[0], left[1], right[1]
    if len(answers) != len(golds):
        plain = all(parse_number(entry) for entry in [*answers, *golds])
        return False if plain and len(answers) < len(golds) else None  # `\pm 1` is two numbers
    if brackets:
        verdicts = [_compare_entry(a, g) for a, g in zip(answers, golds, strict=True)]
    else:
        verdicts = _compare_unordered(answers, golds)
    if False in verdicts:
        return False
    return None if None in verdicts else True


def split_entries(latex: str) -> tuple[str, list[str]] | None:
    r"""The brackets and entries of a list of two or more; no brackets if order does not matter.

    Example:
        >>> entries("(1, \\frac{1}{2}]")
        ('(]', ['1', '\\frac{1}{2}'])
    """
    text, brackets = normalize_latex(latex), ""
    if text.startswith("\\{") and text.endswith("\\}"):
        text = text[2:-2]
    elif text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        brackets, text = text[0] + text[-1], text[1:-1]
    depth, start, parts = 0, 0, []
    for mark in _NESTING.finditer(text):
        if mark.group() == ",":
            if depth == 0:
                parts.append(text[start : mark.start()].strip())
                start = mark.end()
        else:
            depth += 1 if mark.group()[-1] in "{([" else -1
            if depth < 0:  # `(1,2),(3,4)`: the outer brackets are no pair
                return None
    parts.append(text[start:].strip())
    return (brackets, parts) if depth == 0 and len(parts) > 1 and "=" not in text else None


def _compare_entry(answer: str, gold: str) -> bool | None:
    if answer == gold:
        return True
    value = parse_number(gold, bare_units=False)
    if value is None:
        return None
    stated = parse_number(answer)
    return stated is not None and numbers_agree(stated, value)


def _compare_unordered(answers: list[str], golds: list[str]) -> list[bool | None]:
    """One verdict per entry, numbers paired by size; [None] where an entry is no number."""
    if sorted(answers) == sorted(golds):
        return [True]
    stated = [parse_number(entry) for entry in answers]
    values = [parse_number(entry, bare_units=False) for entry in golds]
    known = [value for value in values if value is not None]
    given = [value for value in stated if value is not None]
    if len(known) < len(values) or len(given) < len(stated):
        return [None]
    known.sort(key=lambda value: value.value)
    given.sort(key=lambda value: value.value)
    return [numbers_agree(a, g) for a, g in zip(given, known, strict=True)]
