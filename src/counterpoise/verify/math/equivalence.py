r"""Compare an answer with the reference by Math-Verify: LaTeX to sympy, then computer algebra.

This is the only file that imports Math-Verify, and only worker processes import this file, because
a comparison may take any amount of time or memory. Math-Verify's own time limits need signals in
the main thread, so they are switched off; the limit of the worker pool applies instead.

The content of a box is parsed as a whole or not at all. By default Math-Verify searches text that
it cannot parse for some number, and so finds `2` in `\hbar\omega - \frac{e^{2}}{2m}`; here such
text is compared as text.

Most answers are wrong, and finding that out by `simplify(given - reference)` is slow. Two
expressions whose values differ at one point are different, so they are evaluated at one point
first.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Rational

logging.getLogger("math_verify").setLevel(logging.ERROR)  # silences a warning about its limits

_WHOLE_BOX = [LatexExtractionConfig(boxed_match_priority=0)]
_BARE_FRACTION = re.compile(r"\\frac\s*(\\[a-zA-Z]+|\w)\s*(\\[a-zA-Z]+|\w)")  # `\frac \pi4`


def equivalent(given: str, reference: str) -> bool:
    r"""Whether Math-Verify finds the two equal. Not symmetric: `reference` sets the expected form.

    Example:
        >>> equivalent("\\sqrt{12}", "2\\sqrt{3}")
        True
    """
    parsed_given, parsed_reference = _parse(given), _parse(reference)
    if differ_at_a_point(parsed_given, parsed_reference):
        return False
    return bool(verify(parsed_reference, parsed_given, timeout_seconds=None))


def differ_at_a_point(given: list[Any], reference: list[Any]) -> bool:
    """|given(p) - reference(p)| > (1 + |reference(p)|) / 1000 at a fixed point p.

    This is never true for equal expressions. Only expressions in the same variables are evaluated;
    sets, equations and matrices are left to the full comparison. The margin is far above the
    rounding that Math-Verify tolerates.
    """
    if (
        not given
        or not reference
        or not isinstance(given[0], Expr)
        or not isinstance(reference[0], Expr)
    ):
        return False
    symbols = sorted(reference[0].free_symbols, key=str)
    if sorted(given[0].free_symbols, key=str) != symbols:
        return False
    # Fractions of 11 are unlikely to be a root or a pole of anything in a reference answer.
    point = {symbol: Rational(7 + 4 * k, 11) for k, symbol in enumerate(symbols)}
    try:
        given_value, reference_value = (
            complex(side[0].subs(point).evalf(15)) for side in (given, reference)
        )
    except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError):
        return False  # no finite value at this point: leave it to the full comparison
    return abs(given_value - reference_value) > (1 + abs(reference_value)) / 1000


@lru_cache(maxsize=4096)  # an answer comes again with other references, and the other way round
def _parse(latex: str) -> list[Any]:
    latex = _BARE_FRACTION.sub(r"\\frac{\1}{\2}", latex.rstrip(" .,;"))
    parsed: list[Any] = parse(
        f"\\boxed{{{latex}}}", _WHOLE_BOX, extraction_mode="first_match", parsing_timeout=None
    )
    return parsed
