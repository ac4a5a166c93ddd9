"""Errors that the user can fix: one clear line, exit code 2, nothing lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class PoiseError(Exception):
    """An error message for the user: what is wrong and what to do about it."""


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> PoiseError:
    """The error for a name that is not in a table, with the nearest one that is.

    Example:
        >>> print(unknown_name("composer", "groupd", ["grouped", "shuffled"]))
        unknown composer 'groupd': did you mean 'grouped'? (choices: grouped, shuffled)
    """
    known_names = sorted(choices)
    nearest = get_close_matches(name, known_names, n=1, cutoff=0.5)
    hint = f": did you mean '{nearest[0]}'?" if nearest else ""
    return PoiseError(f"unknown {kind} '{name}'{hint} (choices: {', '.join(known_names)})")


def check_choice(kind: str, name: str, choices: Iterable[str]) -> None:
    """Raise `unknown_name` unless the name is one of the choices."""
    if name not in (choices := tuple(choices)):
        raise unknown_name(kind, name, choices)


def first_line(fault: BaseException) -> str:
    """The first line of an exception's message, or its type if the message is empty."""
    return (str(fault).strip() or type(fault).__name__).splitlines()[0]


# Exceptions of code that meets a value it did not expect.
UNEXPECTED_VALUE_ERRORS = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, NotImplementedError,
    RecursionError, AssertionError, StopIteration,
)  # fmt: skip


@contextmanager
def explain_damage(path: object) -> Iterator[None]:
    """Turn errors caused by unexpected or missing values in the files of `path` into one line.

    For code that only reads and displays a folder. What all readers rely on is checked when it is
    read; this covers the many numbers that a single panel uses. Never use it around code that
    trains or writes, where such an exception is a bug.
    """
    try:
        yield
    except UNEXPECTED_VALUE_ERRORS as fault:
        raise PoiseError(
            f"{path} is damaged, or another version wrote it: {type(fault).__name__}: "
            f"{first_line(fault)}"
        ) from fault


def format_count(n: int, noun: str) -> str:
    """A count with its noun in the singular or plural.

    Example:
        >>> format_count(1, "seed"), format_count(12, "comparison")
        ('1 seed', '12 comparisons')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def format_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as ranges, for messages such as "iterations 1-3, 7, 9-10".

    Example:
        >>> format_ranges([1, 2, 3, 7, 9, 10])
        '1-3, 7, 9-10'
    """
    intervals: list[list[int]] = []
    for number in numbers:
        if intervals and number == intervals[-1][1] + 1:
            intervals[-1][1] = number
        else:
            intervals.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in intervals)
