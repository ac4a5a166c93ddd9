"""Tests as text -> checks whose expected values stay outside the sandbox.

    assert solve([1, 2]) == 3      the program's process computes solve([1, 2]); this one compares
    assert 3 == solve([1, 2])      the same; so do !=, <, <=, >, >=, is, in and their negations,
                                   whichever side is the literal
    assert f(1) == 2 and f(2)      two assertions
    assert not solve([])           any other assertion is decided there
    import math                    any other statement runs there, and must not raise an error
    42                             an expression that calls nothing is no test

A program that knows no expected value cannot write one into its reply, whatever it does to its
process. An assertion that is decided there (`assert math.isclose(solve(2), x)`,
`assert 0 < solve(2) < 9`, one with `or`) it could pretend to pass. A value that is compared here
must be plain data: numbers, text, bytes, lists, tuples, sets and dictionaries.
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
# The same for `literal < value`, called with (value, literal).
MIRRORED_COMPARISONS: Mapping[type[ast.cmpop], Comparison] = {
    **COMPARISONS,
    ast.Lt: operator.gt,
    ast.LtE: operator.ge,
    ast.Gt: operator.lt,
    ast.GtE: operator.le,
    ast.In: lambda container, value: value in container,
    ast.NotIn: lambda container, value: value not in container,
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
    checks = tuple(check for statement in statements for check in _parse_statement(statement))
    if not checks:
        raise PoiseError(
            "there are no tests: verify.name=code takes lines such as "
            "'assert solve([1, 2]) == 3' as the answer"
        )
    return checks


def _parse_statement(statement: ast.stmt) -> list[Check]:
    # A problem whose answer is 42 or (1, 2) has no tests: every program would pass them.
    if isinstance(statement, ast.Expr) and not _has_call(statement):
        return []
    if not isinstance(statement, ast.Assert):
        return [Check("run", ast.unparse(statement))]
    test = statement.test
    conditions = [test]
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        conditions = test.values
    return [_parse_condition(condition) for condition in conditions]


def _has_call(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _parse_condition(condition: ast.expr) -> Check:
    if isinstance(condition, ast.Compare) and len(condition.ops) == 1:
        left, (right,), comparison = (
            condition.left,
            condition.comparators,
            type(condition.ops[0]),
        )
        if (expected := _literal(right)) is not None:
            return Check("value", ast.unparse(left), COMPARISONS[comparison], expected[0])
        if (expected := _literal(left)) is not None:
            return Check("value", ast.unparse(right), MIRRORED_COMPARISONS[comparison], expected[0])
    return Check("value", f"not not ({ast.unparse(condition)})", operator.is_, True)


def _literal(node: ast.expr) -> tuple[Any] | None:
    """The value of a literal, in a tuple because it may be None; None if it is no literal."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None


def from_plain(plain: Any) -> Any:
    """The inverse of `sandboxed_process.to_plain`; an error if `plain` did not come from it.

    Example:
        >>> from_plain({"dict": [["a", {"tuple": [1, 2]}]]})
        {'a': (1, 2)}
    """
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise TypeError("a list without its type")
        return plain
    ((kind, content),) = plain.items()
    if kind in ("list", "tuple", "set"):
        containers: Mapping[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set}
        return containers[kind](from_plain(item) for item in content)
    if kind == "dict":
        return {from_plain(key): from_plain(item) for key, item in content}
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "complex":
        return complex(*content)
    if kind == "int":
        return int(content, 16)
    raise TypeError(f"{kind} is not plain data")
