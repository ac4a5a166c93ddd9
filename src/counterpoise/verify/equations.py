r"""Reward the arithmetic of a response: r = true equations / equations written; 0 without any.

An equation is a sum, difference, product or quotient of whole numbers, an equals sign and a whole
number, as in "4 * 3 = 12". Products and quotients are evaluated first, and exactly. Whole numbers
may have commas between groups of three digits.

The reward looks at how an answer was reached, not at the answer itself, so it still differs inside
a group whose answers are all right or all wrong. That makes it a useful second reward for
`credit.mixture`. It is this project's own, not from a paper. Trivial equations satisfy it, so mix
it with the verifier's reward instead of training on it alone.
"""

from __future__ import annotations

import re
from fractions import Fraction
from operator import add, mul, sub, truediv

from counterpoise.config import RunConfig
from counterpoise.types import Prompt, Response

# Longer digit strings are noise, not a step of a word problem.
NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,3}|\d{1,12})"
# The look-behinds refuse the tail of a longer expression: "1.5 + 2 = 3" must not match as
# "5 + 2 = 3", and "1 + 2 + 3 = 6" must not match as "2 + 3 = 6".
EQUATION = re.compile(
    r"(?<![\d.+*/=^-])(?<![+*/=-] )(?<!\d,)"
    rf"({NUMBER}(?: ?[-+*/] ?{NUMBER})+) ?= ?(-?{NUMBER})(?![\d.,]*\d)"
)
OPERATIONS = {"+": add, "-": sub, "*": mul, "/": truediv}


def reward(prompt: Prompt, response: Response, config: RunConfig) -> float:
    """The share of true equations in the response."""
    return share_of_true_equations(response.text)


def share_of_true_equations(text: str) -> float:
    """
    Example:
        >>> share_of_true_equations("There are 4 * 3 = 12 shells. There remain 12 - 4 = 9 shells.")
        0.5
    """
    equations = EQUATION.findall(text)
    if not equations:
        return 0.0
    num_true = sum(
        evaluate_expression(expression) == _parse_whole(result) for expression, result in equations
    )
    return num_true / len(equations)


def evaluate_expression(expression: str) -> Fraction | None:
    """The exact value, or None if the expression divides by zero.

    Example:
        >>> evaluate_expression("2 + 3 * 4")
        Fraction(14, 1)
    """
    terms: list[Fraction] = []
    # A leading "+" makes the symbols alternate: operator, number, operator, number, ...
    symbols = ["+", *re.findall(r"[\d,]+|[-+*/]", expression)]
    for operator, digits in zip(symbols[::2], symbols[1::2], strict=True):
        operand = Fraction(_parse_whole(digits))
        if operator in "+-":
            terms.append(OPERATIONS[operator](Fraction(0), operand))
        elif operator == "/" and operand == 0:
            return None
        else:
            # Products and quotients bind to the last term, which gives them precedence.
            terms[-1] = OPERATIONS[operator](terms[-1], operand)
    return sum(terms, Fraction(0))


def _parse_whole(digits: str) -> int:
    return int(digits.replace(",", ""))
