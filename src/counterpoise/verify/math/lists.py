r"""Compare lists such as (a, b] and a, b, c: they are equal if their entries are.

    ordered     (6, 31)  [0, 1)     same brackets, and entry k equals entry k
    unordered   3, 5, 7   \{3, 5\}   the same numbers in any order

If an entry of the reference is a number, the entry of the answer must be that number, worked out
(numbers.py). An answer with fewer numbers than the reference is wrong: 1 does not answer 1, 1. If
entries are neither numbers nor the same text, the verdict is None and Math-Verify has to decide.
"""

from __future__ import annotations

import re

from counterpoise.verify.math.latex import normalize_latex
from counterpoise.verify.math.numbers import numbers_agree, parse_number

_NESTING = re.compile(r"\\?[{(\[]|\\?[})\]]|,")


def compare_lists(answer: str, gold: str) -> bool | None:
    """The verdict on two lists; None if they are not both ordered or both unordered lists.

    Example:
        >>> compare_lists("7, 5, 3", "3, 5, 7"), compare_lists("(1, 2]", "(1, 3]")
        (True, False)
    """
    gold_list = split_entries(gold)
    if gold_list is None:
        return None
    brackets, gold_entries = gold_list
    answer_brackets, answer_entries = split_entries(answer) or ("", [answer])
    if answer_brackets != brackets:
        return None
    if len(answer_entries) != len(gold_entries):
        # Fewer entries are only wrong if all are plain numbers: the single entry `\pm 1` is two.
        all_numbers = all(parse_number(entry) for entry in [*answer_entries, *gold_entries])
        return False if all_numbers and len(answer_entries) < len(gold_entries) else None
    if brackets:
        verdicts = [
            _compare_entry(answer_entry, gold_entry)
            for answer_entry, gold_entry in zip(answer_entries, gold_entries, strict=True)
        ]
    else:
        verdicts = _compare_unordered(answer_entries, gold_entries)
    if False in verdicts:
        return False
    return None if None in verdicts else True


def split_entries(latex: str) -> tuple[str, list[str]] | None:
    r"""The brackets and entries of a list of at least two; "" as brackets if it is unordered.

    Example:
        >>> split_entries("(1, \\frac{1}{2}]")
        ('(]', ['1', '\\frac{1}{2}'])
    """
    text, brackets = normalize_latex(latex), ""
    if text.startswith("\\{") and text.endswith("\\}"):
        text = text[2:-2]
    elif text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        brackets, text = text[0] + text[-1], text[1:-1]
    depth, entry_start, list_entries = 0, 0, []
    for mark in _NESTING.finditer(text):
        if mark.group() == ",":
            if depth == 0:
                list_entries.append(text[entry_start : mark.start()].strip())
                entry_start = mark.end()
        else:
            depth += 1 if mark.group()[-1] in "{([" else -1
            if depth < 0:  # `(1,2),(3,4)`: the first and last bracket are not a pair
                return None
    list_entries.append(text[entry_start:].strip())
    is_list = depth == 0 and len(list_entries) > 1 and "=" not in text
    return (brackets, list_entries) if is_list else None


def _compare_entry(answer: str, gold: str) -> bool | None:
    if answer == gold:
        return True
    gold_number = parse_number(gold, bare_units=False)
    if gold_number is None:
        return None
    answer_number = parse_number(answer)
    return answer_number is not None and numbers_agree(answer_number, gold_number)


def _compare_unordered(answers: list[str], golds: list[str]) -> list[bool | None]:
    """One verdict per entry, numbers paired by size; [None] if an entry is not a number."""
    if sorted(answers) == sorted(golds):
        return [True]
    parsed_answers = [parse_number(entry) for entry in answers]
    parsed_golds = [parse_number(entry, bare_units=False) for entry in golds]
    gold_numbers = [number for number in parsed_golds if number is not None]
    answer_numbers = [number for number in parsed_answers if number is not None]
    if len(gold_numbers) < len(parsed_golds) or len(answer_numbers) < len(parsed_answers):
        return [None]
    gold_numbers.sort(key=lambda number: number.value)
    answer_numbers.sort(key=lambda number: number.value)
    return [
        numbers_agree(answer, gold)
        for answer, gold in zip(answer_numbers, gold_numbers, strict=True)
    ]
