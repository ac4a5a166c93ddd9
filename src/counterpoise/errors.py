"""Faults that are the user's to mend: one clear line, exit code 2, nothing lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class PoiseError(Exception):
    """A message for the person at the terminal. It says what is wrong and what to do about it."""


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> PoiseError:
    """The error for a name that is not in a table, with the nearest one that is.

    Example:
        >>> print(unknown("composer", "groupd", ["grouped", "shuffled"]))
        unknown composer 'groupd': did you mean 'grouped'? (choices: grouped, shuffled)
    """
    known_names = sorted(choices)
    nearest = get_close_matches(name, known_names, n=1, cutoff=0.5)
    hint = f": did you mean '{nearest[0]}'?" if nearest else ""
    return PoiseError(f"unknown {kind} '{name}'{hint} (choices: {', '.join(known_names)})")


def first_line(fault: BaseException) -> str:
    """Of what another package raised: enough for one line, its kind where it says nothing."""
    return (str(fault).strip() or type(fault).__name__).splitlines()[0]


# What code raises that computes with values it did not expect.
UNEXPECTED_VALUE_ERRORS = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, NotImplementedError,
    RecursionError, AssertionError,
)  # fmt: skip


@contextmanager
def explain_damage(path: object) -> Iterator[None]:
    """Around code that draws or counts what a folder holds: a value that no version of ours wrote,
    or one that is missing, is a fault of the files and becomes one line.

    What readers all rely on is checked where it is read; this is for the many numbers that only
    one panel or another asks for. Not for code that trains or writes.
    """
    try:
        yield
    except UNEXPECTED_VALUE_ERRORS as fault:
        raise PoiseError(
            f"{path} is damaged, or another version wrote it: {type(fault).__name__}: "
            f"{first_line(fault)}"
        ) from fault


def format_count(n: int, noun: str) -> str:
    """
    Example:
        >>> counted(1, "seed"), counted(12, "comparison")
        ('1 seed', '12 comparisons')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def format_ranges(numbers: Iterable[int]) -> str:
    """What there is, in few words: "only of iterations 1-3, 7, 9-10".

    Example:
        >>> ranges([1, 2, 3, 7, 9, 10])
        '1-3, 7, 9-10'
    """
    intervals: list[list[int]] = []
    for number in numbers:
        if intervals and number == intervals[-1][1] + 1:
            intervals[-1][1] = number
        else:
            intervals.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in intervals)
