"""What OAR takes for a rollout's outcome, and what it makes of how much a token matters to it.

    last           P = softmax of the logits at the answer's first token
    answer_mean    P = softmax of the mean logits at its tokens
    answer_joint   the log-probability of its tokens

The answer is the last box; reasoning is what comes before it. Only reasoning is weighed
(credit/bilevel.py): other tokens get 1, and so do all of a rollout without a box or reasoning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from counterpoise.credit.answer_spans import Answer, answers
from counterpoise.credit.bilevel import reshape
from counterpoise.credit.masked_copies import Span
from counterpoise.credit.view import View, ones
from counterpoise.errors import PoiseError, unknown
from counterpoise.types import Floats

COMPARE = ("answer_mean", "last", "answer_joint")


def check(compare: str, quantile: float, boost: float) -> None:
    if compare not in COMPARE:
        raise unknown("comparison of answers", compare, COMPARE)
    if not 0 <= quantile <= 1 or not boost >= 0:
        raise PoiseError(
            f"quantile must be 0 to 1 and boost 0 or above: not {quantile:g} and {boost:g}"
        )


def reasoned(view: View) -> dict[int, Answer]:
    """The rows that have an answer and reasoning before it."""
    return {i: box for i, box in enumerate(answers(view)) if box and box.mark}


def judged(box: Answer, compare: str) -> Span:
    """The tokens at which outcomes are compared."""
    return box.start, box.start + 1 if compare == "last" else box.end


def weighed(
    view: View,
    boxes: Mapping[int, Answer],
    importances: Iterable[tuple[int, Floats]],
    quantile: float,
    boost: float,
) -> list[Floats]:
    """Weights of every row by (row, I of its tokens from the first on)."""
    found = ones(view.rows)
    for i, importance_T in importances:
        reasoning = slice(boxes[i].mark)
        found[i][reasoning] = reshape(importance_T[reasoning], quantile, boost)
    return found
