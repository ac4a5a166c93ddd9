"""Tests as text -> checks whose expected values stay outside the sandbox.

    assert solve([1, 2]) == 3      the program's process computes solve([1, 2]); this one compares
    assert 3 == solve([1, 2])      the same; so do !=, <, <=, >, >=, is, in and their negations,
                                   wherever one side is a literal
    assert not solve([])           the truth of solve([]) is computed there, and compared here
    import math                    any other statement runs there, and must not raise an error

A program that knows no expected value cannot write one into its reply, whatever it does to its
process. Only an assertion without a literal (`assert math.isclose(solve(2), x)`) is decided by the
process of the program, which could pretend.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from counterpoise.errors import PoiseError

Comparison = Callable[[Any, Any], Any]
COMPARISONS: Mapping[type[ast.cmpop], Comparison] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda value, container: value in container,
    ast.NotIn: lambda value, container: value not in container,
}
MAX_TESTS_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class Check:
    """One statement of the tests.

    Example:
        Check("value", "solve([1, 2])", operator.eq, 3)
    """

    kind: str  # "value": an expression to compare; "run": statements that must not fail
    text: str
    compare: Comparison = operator.eq
    expected: Any = None

    def passes(self, reply: Mapping[str, Any]) -> bool:
        """Whether the reply of the program's process is the right one."""
        if self.kind == "run":
            return reply.get("ran") is True
        if "value" not in reply:
            return False
        try:
            return bool(self.compare(from_plain(reply["value"]), self.expected))
        except (TypeError, ValueError, RecursionError):  # not comparable, or not a reply of ours
            return False


@lru_cache(maxsize=4096)
def parse_tests(text: str) -> tuple[Check, ...]:
    """The checks of a problem; an error if they are not Python, or none."""
    if len(text) > MAX_TESTS_CHARACTERS:
        raise PoiseError(f"tests of {len(text):,} characters: at most {MAX_TESTS_CHARACTERS:,}")
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        line_hint = f"line {fault.lineno}: " if isinstance(fault, SyntaxError) else ""
        raise PoiseError(
            f"the tests are not Python ({line_hint}{getattr(fault, 'msg', fault)}): "
            "verify.name=code takes lines such as 'assert solve([1, 2]) == 3' as the answer"
        ) from None
    checks = tuple(_parse_statement(statement) for statement in statements)
    if not checks:
        raise PoiseError(
            "there are no tests: verify.name=code takes lines such as "
            "'assert solve([1, 2]) == 3' as the answer"
        )
    return checks


def _parse_statement(statement: ast.stmt) -> Check:
    if not isinstance(statement, ast.Assert):
        return Check("run", ast.unparse(statement))
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, (right,), comparison = test.left, test.comparators, type(test.ops[0])
        if (is_literal := _literal(right)) is not None:
            return Check("value", ast.unparse(left), COMPARISONS[comparison], is_literal[0])
        if comparison is ast.Eq and (is_literal := _literal(left)) is not None:
            return Check("value", ast.unparse(right), operator.eq, is_literal[0])
    return Check("value", f"not not ({ast.unparse(test)})", operator.is_, True)


def _literal(node: ast.expr) -> tuple[Any] | None:
    """The value of a literal, in a tuple because it may be None; None if it is no literal."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None


def from_plain(plain: Any) -> Any:
    """The value of `sandboxed_process.to_plain`; an error for anything else.

    Example:
        >>> from_plain({"dict": [["a", {"tuple": [1, 2]}]]})
        {'a': (1, 2)}
    """
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise TypeError("a list without its type")
        return plain
    ((kind, items),) = plain.items()
    if kind == "dict":
        return {from_plain(key): from_plain(item) for key, item in items}
    containers: Mapping[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set}
    if kind not in containers:
        raise TypeError(f"{kind} is not plain data")
    return containers[kind](from_plain(item) for item in items)
