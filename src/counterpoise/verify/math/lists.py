r"""Compare lists such as (a, b] and a, b, c: they are equal if their entries are.

    ordered     (6, 31)  [0, 1)      entry k equals entry k. Where the reference has a number, the
                                     answer must have that number, worked out (numbers.py)
    unordered   3, 5, 7   \{3, 5\}   the same numbers in any order
    None        other brackets, another number of entries, or entries that are neither the same
                text nor numbers: Math-Verify has to decide

An answer without commas is an unordered list of one. If all entries are numbers, an answer with
fewer of them than the reference is wrong: 1 does not answer 1, 1.
"""

from __future__ import annotations

import re

from counterpoise.verify.math.latex import normalize_latex
from counterpoise.verify.math.numbers import numbers_agree, parse_number

_NESTING = re.compile(r"\\?[{(\[]|\\?[})\]]|,")


def compare_lists(given: str, reference: str) -> bool | None:
    """The verdict on two lists; None if the reference is no list, or Math-Verify has to decide.

    Example:
        >>> compare_lists("7, 5, 3", "3, 5, 7"), compare_lists("(1, 2]", "(1, 3]")
        (True, False)
    """
    reference_list = split_entries(reference)
    if reference_list is None:
        return None
    brackets, reference_entries = reference_list
    given_brackets, given_entries = split_entries(given) or ("", [given])
    if given_brackets != brackets:
        return None
    if len(given_entries) != len(reference_entries):
        # Fewer entries are only wrong if all are plain numbers: the single entry `\pm 1` is two.
        all_numbers = all(parse_number(entry) for entry in [*given_entries, *reference_entries])
        return False if all_numbers and len(given_entries) < len(reference_entries) else None
    if brackets:
        verdicts = [
            _compare_entry(given_entry, reference_entry)
            for given_entry, reference_entry in zip(given_entries, reference_entries, strict=True)
        ]
    else:
        verdicts = _compare_unordered(given_entries, reference_entries)
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


def _compare_entry(given: str, reference: str) -> bool | None:
    if given == reference:
        return True
    reference_number = parse_number(reference, bare_units=False)
    if reference_number is None:
        return None
    given_number = parse_number(given)
    return given_number is not None and numbers_agree(given_number, reference_number)


def _compare_unordered(given: list[str], references: list[str]) -> list[bool | None]:
    """One verdict per entry, numbers paired by size; [None] if an entry is not a number."""
    if sorted(given) == sorted(references):
        return [True]
    parsed_given = [parse_number(entry) for entry in given]
    parsed_references = [parse_number(entry, bare_units=False) for entry in references]
    reference_numbers = [number for number in parsed_references if number is not None]
    given_numbers = [number for number in parsed_given if number is not None]
    if len(reference_numbers) < len(parsed_references) or len(given_numbers) < len(parsed_given):
        return [None]
    reference_numbers.sort(key=lambda number: number.value)
    given_numbers.sort(key=lambda number: number.value)
    return [
        numbers_agree(given_number, reference_number)
        for given_number, reference_number in zip(given_numbers, reference_numbers, strict=True)
    ]
