r"""Decide whether two reference answers are equal, without sharing code with the verifier.

    equal text, ignoring typography and units; or
    equal values: numbers and lists of numbers directly, expressions at two points

It reads + - * / ^, \frac, \sqrt, \pi, brackets, decimals, factorials and the usual functions;
every other letter is a variable whose value is derived from its name. What it cannot parse has no
value, and is equal only to the same text. Lists without round or square brackets are unordered.
Both texts are references or made from them (wrong_answers.py), so it need not resist adversarial
responses. A made-up answer that it cannot parse counts as different, thus as wrong: "-\pm 3" for
"\pm 3".
"""

from __future__ import annotations

import cmath
import re
from functools import lru_cache
from hashlib import blake2b
from math import factorial

Value = tuple[str, tuple[complex, ...]]  # brackets, entries
TEST_POINTS = (0, 1)  # two sets of values of the variables
TOLERANCE = 1e-9

_UNITS = re.compile(
    r"\\(?:text|mbox|mathrm|textbf)\s*\{[^{}]*\}(?:\^\{?\d\}?)?|\^\s*\{?\\circ\}?|\\?[$%]|\\degree"
)
_SPACE = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|(?<!\\)\\[,!;: ]|\\q?quad|~|\.$")
_GREEK = re.compile(r"\\(?:alpha|beta|gamma|theta|lambda|mu|rho|sigma|tau|omega|zeta|Delta|hbar)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NAME = re.compile(r"^[a-zA-Z](?:\([a-z]\))?(?:_\{?\w+\}?)? *=|^x *\\in *(?=[(\[])")
_TOKEN = re.compile(
    r"\d*\.?\d+|\d+\.|\\[a-zA-Z]+|[a-zA-Z](?:_(?:\{[^{}]*\}|\w))?|[-+*/^()\[\]{}!|]", re.ASCII
)
_FUNCTIONS = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "exp": cmath.exp, "ln": cmath.log,
    "arcsin": cmath.asin, "arctan": cmath.atan, "cot": lambda x: 1 / cmath.tan(x),
}  # fmt: skip


def same_answer(left: str, right: str) -> bool:
    r"""Whether two reference answers are equal in text or in value.

    Example:
        >>> same_answer("\\frac{1}{2}", "0.50"), same_answer("2\\sqrt{3}", "\\sqrt{12}")
        (True, True)
        >>> same_answer("(1, 2)", "(2, 1)"), same_answer("1, 2", "2,1")
        (False, True)
    """
    if plain_text(left) == plain_text(right):
        return True
    for point in TEST_POINTS:
        left_value, right_value = parse_answer(left, point), parse_answer(right, point)
        if (
            left_value is None
            or right_value is None
            or left_value[0] != right_value[0]
            or len(left_value[1]) != len(right_value[1])
        ):
            return False
        pairs = zip(left_value[1], right_value[1], strict=True)
        if any(
            abs(left_entry - right_entry) > TOLERANCE * max(1.0, abs(left_entry))
            for left_entry, right_entry in pairs
        ):
            return False
    return True


def plain_text(latex: str) -> str:
    """The text in lower case, without spaces, unit markup and bracket sizes."""
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf)\s*\{([^{}]*)\}", r"\1", latex)
    text = _SPACE.sub("", re.sub(r"\\[dtc]frac", r"\\frac", text))
    return re.sub(r"\s", "", text).casefold()


@lru_cache(maxsize=65_536)
def parse_answer(latex: str, point: int = 0) -> Value | None:
    """The brackets and the values of all entries; None if it cannot be parsed."""
    text = re.sub(r",\\! *|\{,\}", ",", _UNITS.sub("", latex))
    text = _NAME.sub("", re.sub(r"\\[dtc]frac", r"\\frac", _SPACE.sub("", text).strip()))
    brackets = ""
    if text[:2] == "\\{" and text[-2:] == "\\}":
        text = text[2:-2]
    elif text[:1] in ("(", "[") and text[-1:] in (")", "]") and "," in text:
        brackets, text = text[0] + text[-1], text[1:-1]
    else:
        text = _THOUSANDS.sub("", text)
    entries = []
    for entry in _split_entries(text):
        tokens = _TOKEN.findall(entry)
        if "".join(tokens) != re.sub(r"\s", "", entry) or not tokens:
            return None
        try:
            entries.append(_Reader(tokens, point).read())
        except (ValueError, ArithmeticError, IndexError):  # outside the grammar, or not a number
            return None
    if not brackets:  # an unordered list
        entries.sort(
            key=lambda entry_value: (round(entry_value.real, 9), round(entry_value.imag, 9))
        )
    return brackets, tuple(entries)


def _split_entries(text: str) -> list[str]:
    """The entries between commas outside brackets."""
    entries, depth, entry_start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            entries.append(text[entry_start:index])
            entry_start = index + 1
    return [*entries, text[entry_start:]]


class _Reader:
    """A recursive-descent parser that evaluates: sum > product > power > factor."""

    def __init__(self, tokens: list[str], point: int) -> None:
        self.tokens, self.position, self.point = tokens, 0, point

    def read(self) -> complex:
        result = self._sum()
        if self.position < len(self.tokens):
            raise ValueError("unparsed tokens remain")
        return result

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self.tokens[self.position]
        if expected and token != expected:
            raise ValueError(f"{expected} is missing")
        self.position += 1
        return token

    def _sum(self) -> complex:
        total = self._product()
        while self._peek() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            total += sign * self._product()
        return total

    def _product(self) -> complex:
        result = self._power()
        while (token := self._peek()) not in ("", "+", "-", ")", "}", "]", "|"):
            if token in ("*", "\\cdot", "\\times"):
                self._take()
                result *= self._power()
            elif token == "/":
                self._take()
                result /= self._power()
            else:
                result *= self._power()
        return result

    def _power(self) -> complex:
        if self._peek() in ("+", "-"):
            return (1 if self._take() == "+" else -1) * self._power()
        base = self._factor()
        while self._peek() == "!":
            self._take()
            if base.imag or base.real != int(base.real) or not 0 <= base.real < 150:
                raise ValueError("not a small natural number")
            base = complex(factorial(int(base.real)))
        if self._peek() == "^":
            self._take()
            exponent = self._factor()
            if abs(exponent) > 400:  # would overflow, or take very long
                raise ValueError("too large")
            base = base**exponent
        return complex(base)

    def _factor(self) -> complex:
        token = self._take()
        if token in ("(", "{", "["):
            inner = self._sum()
            self._take({"(": ")", "{": "}", "[": "]"}[token])
            return inner
        if token[0].isdigit() or token[0] == ".":
            mixed = token.isdigit() and self._peek() == "\\frac"  # 1\frac{4}{5}
            return float(token) + (self._factor() if mixed else 0j)
        if token == "\\frac":
            top, bottom = self._argument(), self._argument()
            return top / bottom
        if token == "\\sqrt":
            root = 2 + 0j
            if self._peek() == "[":
                root = self._factor()
            return self._argument() ** (1 / root)
        if token == "\\pi":
            return complex(cmath.pi)
        if token[1:] in _FUNCTIONS and token[0] == "\\":
            return _FUNCTIONS[token[1:]](self._power())
        if token in ("i", "e"):
            return 1j if token == "i" else complex(cmath.e)
        if token[0].isalpha() or _GREEK.fullmatch(token):
            return self._variable(token)
        raise ValueError(f"unknown token {token}")

    def _argument(self) -> complex:
        r"""An argument of \frac or \sqrt: a group, or the first digit of what follows."""
        token = self._peek()
        if len(token) > 1 and token.isdigit():
            # \frac12 is 1/2: split the number after its first digit.
            self.tokens[self.position : self.position + 1] = [token[0], token[1:]]
        return self._factor()

    def _variable(self, name: str) -> complex:
        # Between 0.5 and 1.5: away from 0 and from special values, equal for equal names.
        digest = blake2b(f"{self.point} {name}".encode(), digest_size=4).digest()
        return complex(0.5 + int.from_bytes(digest) / 2**32)
