"""Tests as text -> checks whose expected values stay outside the sandbox.

    assert solve([1, 2]) == 3      the sandbox computes solve([1, 2]); this process compares
    assert 3 == solve([1, 2])      the same; so do !=, <, <=, >, >=, is, in and their negations,
                                   whichever side is the literal
    assert f(1) == 2 and f(2)      two assertions
    assert not solve([])           any other assertion is decided in the sandbox
    import math                    any other statement runs in the sandbox, and must not raise
    42                             an expression that calls nothing is no test
    def check(f): assert f(1)      no test unless another line calls it, as `check(solve)`

A program that knows no expected value cannot write one into its reply, whatever it does to its
process. But it could pretend to pass an assertion that is decided in the sandbox
(`assert math.isclose(solve(2), x)`, `assert 0 < solve(2) < 9`, one with `or`). A value that is
compared here must be plain data: numbers, text, bytes, lists, tuples, sets and dictionaries.
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
    """The checks of a problem; an error if they are not Python, or if there are none."""
    if len(text) > MAX_TESTS_CHARACTERS:
        raise PoiseError(f"tests of {len(text):,} characters: at most {MAX_TESTS_CHARACTERS:,}")
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        line_hint = f"line {fault.lineno}: " if isinstance(fault, SyntaxError) else ""
        raise PoiseError(
            f"the tests are not Python ({line_hint}{getattr(fault, 'msg', fault)}): "
            "the verifier 'code' takes lines such as 'assert solve([1, 2]) == 3' as the answer"
        ) from None
    # Every program would pass tests that only import and define: HumanEval's column `test` is a
    # function `check` that no line calls.
    if not any(map(_can_fail, statements)):
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names = [node.name for node in statements if isinstance(node, definitions)]
        hint = f"; '{names[-1]}' is defined, and no line calls it" if names else ""
        raise PoiseError(
            "there are no tests: the verifier 'code' takes lines such as "
            f"'assert solve([1, 2]) == 3' as the answer{hint}"
        )
    return tuple(check for statement in statements for check in _parse_statement(statement))


def _can_fail(node: ast.AST) -> bool:
    """Whether a statement can show that a program is wrong: it asserts or calls something."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign):
        return False
    # The tests run in the program's module, whose name is not "__main__".
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return any(map(_can_fail, node.orelse))
    if isinstance(node, ast.Expr):
        return _has_call(node)
    return isinstance(node, ast.Assert | ast.Raise) or any(
        _can_fail(child) for child in ast.iter_child_nodes(node)
    )


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
