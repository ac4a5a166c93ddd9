r"""r = true equations / equations that the response writes down; 0 where it writes none.

An equation is whole numbers joined by + - * /, an equals sign and a whole number, as in
"4 * 3 = 12"; products and quotients come first, and values are exact. It looks at how an answer
was reached and not at the answer, so it differs where a group is all right or all wrong: a second
reward for `credit.mixture`. Chosen here. It can be met with trivial equations: mix it in, do not
train on it alone.
"""

from __future__ import annotations

import re
from fractions import Fraction
from operator import add, mul, sub, truediv

from counterpoise.config import RunConfig
from counterpoise.types import Prompt, Response

NUMBER = r"\d{1,12}"  # what is longer is no step of a word problem
EQUATION = re.compile(
    rf"(?<![\d.+*/=-])(?<![+*/=-] )({NUMBER}(?: ?[-+*/] ?{NUMBER})+) ?= ?(-?{NUMBER})(?![\d.]*\d)"
)
OPERATIONS = {"+": add, "-": sub, "*": mul, "/": truediv}


def reward(prompt: Prompt, response: Response, config: RunConfig) -> float:
    return share_of_true_equations(response.text)


def share_of_true_equations(text: str) -> float:
    """
    Example:
        >>> share_true("There are 4 * 3 = 12 shells. There remain 12 - 4 = 9 shells.")
        0.5
    """
    found = EQUATION.findall(text)
    return (
        sum(evaluate_expression(left) == int(right) for left, right in found) / len(found)
        if found
        else 0.0
    )


def evaluate_expression(expression: str) -> Fraction | None:
    """None where it divides by zero.

    Example:
        >>> value("2 + 3 * 4")
        Fraction(14, 1)
    """
    terms: list[Fraction] = []
    parts = ["+", *re.findall(r"\d+|[-+*/]", expression)]
    for operator, number in zip(parts[::2], parts[1::2], strict=True):
        right = Fraction(int(number))
        if operator in "+-":
            terms.append(OPERATIONS[operator](Fraction(0), right))
        elif operator == "/" and right == 0:
            return None
        else:
            terms[-1] = OPERATIONS[operator](terms[-1], right)
    return sum(terms, Fraction(0))
