"""What OAR takes for a rollout's outcome, and what it makes of how much a token matters to it.

    last           P = softmax of the logits at the answer's first token
    answer_mean    P = softmax of the mean logits at its tokens
    answer_joint   the log-probability of its tokens

The answer is the last box; reasoning is what comes before it. Only reasoning is weighed
(credit/bilevel.py): other tokens get 1, and so do all of a rollout without a box or reasoning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from counterpoise.credit.answer_spans import AnswerSpan, locate_answers
from counterpoise.credit.bilevel import reshape_importance
from counterpoise.credit.masked_copies import Span
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError, unknown
from counterpoise.types import Floats

COMPARISONS = ("answer_mean", "last", "answer_joint")


def check_settings(compare: str, quantile: float, boost: float) -> None:
    if compare not in COMPARISONS:
        raise unknown("comparison of answers", compare, COMPARISONS)
    if not 0 <= quantile <= 1 or not boost >= 0:
        raise PoiseError(
            f"quantile must be 0 to 1 and boost 0 or above: not {quantile:g} and {boost:g}"
        )


def rows_with_reasoning(view: CreditView) -> dict[int, AnswerSpan]:
    """The rows that have an answer and reasoning before it."""
    return {i: box for i, box in enumerate(locate_answers(view)) if box and box.box_start}


def outcome_span(box: AnswerSpan, compare: str) -> Span:
    """The tokens at which outcomes are compared."""
    return box.content_start, box.content_start + 1 if compare == "last" else box.content_end


def weights_from_importance(
    view: CreditView,
    boxes: Mapping[int, AnswerSpan],
    importances: Iterable[tuple[int, Floats]],
    quantile: float,
    boost: float,
) -> list[Floats]:
    """Weights of every row by (row, I of its tokens from the first on)."""
    found = unit_weights(view.rows)
    for i, importance_T in importances:
        reasoning = slice(boxes[i].box_start)
        found[i][reasoning] = reshape_importance(importance_T[reasoning], quantile, boost)
    return found
