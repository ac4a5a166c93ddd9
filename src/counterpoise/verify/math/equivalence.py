r"""answer = reference, by Math-Verify: LaTeX -> sympy, then numeric and symbolic comparison.

The only file that imports Math-Verify, and only worker processes import this file: a comparison
may need any amount of time or memory. Math-Verify's own time limits need signals in the main
thread, so they are off; the pool's limit holds instead.

The box is read whole or not at all. By default Math-Verify looks for some number inside what it
cannot parse, and so finds `2` in `\hbar\omega - \frac{e^{2}}{2m}`; here, what it cannot parse is
compared as text.

Most answers are wrong, and to learn that from `simplify(answer - gold)` is slow. Two expressions
that differ at one point are different, so one point is tried first.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Rational

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its limits are off

_WHOLE_BOX = [LatexExtractionConfig(boxed_match_priority=0)]
_BARE_FRACTION = re.compile(r"\\frac\s*(\\[a-zA-Z]+|\w)\s*(\\[a-zA-Z]+|\w)")  # `\frac \pi4`


def equivalent(answer: str, gold: str) -> bool:
    r"""Whether Math-Verify finds the two equal. Not symmetric: `gold` sets the expected form.

    Example:
        >>> equivalent("\\sqrt{12}", "2\\sqrt{3}")
        True
    """
    parsed_answer, parsed_gold = _parse(answer), _parse_gold(gold)
    if differ_at_a_point(parsed_answer, parsed_gold):
        return False
    return bool(verify(parsed_gold, parsed_answer, timeout_seconds=None))


def differ_at_a_point(answer: list[Any], gold: list[Any]) -> bool:
    """|answer(p) - gold(p)| > (1 + |gold(p)|) / 1000 for some fixed p; never true of equals.

    Only for expressions in the same variables; sets, equations and matrices are left to the
    full comparison. The margin is far above the rounding that Math-Verify forgives.
    """
    if not answer or not gold or not isinstance(answer[0], Expr) or not isinstance(gold[0], Expr):
        return False
    symbols = sorted(gold[0].free_symbols, key=str)
    if sorted(answer[0].free_symbols, key=str) != symbols:
        return False
    point = {symbol: Rational(7 + 4 * k, 11) for k, symbol in enumerate(symbols)}
    try:
        here, there = (complex(side[0].subs(point).evalf(15)) for side in (answer, gold))
    except (
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ):  # no finite value there
        return False
    return abs(here - there) > (1 + abs(there)) / 1000


def _parse(latex: str) -> list[Any]:
    latex = _BARE_FRACTION.sub(r"\\frac{\1}{\2}", latex.rstrip(" .,;"))
    parsed: list[Any] = parse(
        f"\\boxed{{{latex}}}", _WHOLE_BOX, extraction_mode="first_match", parsing_timeout=None
    )
    return parsed


_parse_gold = lru_cache(maxsize=4096)(_parse)
