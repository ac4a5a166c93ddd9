"""OAR's definition of a rollout's outcome, shared by its two variants (oar_g, oar_p).

    last           P = the distribution that predicts the answer's first token; the authors' name:
                   it is the last one before the answer
    answer_mean    P = softmax of the mean of the logits that predict the answer's tokens
    answer_joint   the log-probability of the answer's tokens

The answer is the content of the last box; reasoning is everything before the box. Only reasoning
tokens are weighted (credit/bilevel.py): others get 1, as do all tokens of a rollout without a box
or without reasoning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from counterpoise.credit.answer_spans import AnswerSpan, locate_answers
from counterpoise.credit.bilevel import reshape_importance
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.model.spans import Span
from counterpoise.types import Floats

COMPARISONS = ("answer_mean", "last", "answer_joint")


def check_settings(compare: str, quantile: float, boost: float) -> None:
    """Raise unless the settings that both OAR variants share are valid."""
    if compare not in COMPARISONS:
        raise unknown_name("comparison of answers", compare, COMPARISONS)
    if not 0 <= quantile <= 1 or not 0 <= boost < math.inf:
        raise PoiseError(
            "quantile must be 0 to 1, and boost a finite number of 0 or above: not "
            f"{quantile:g} and {boost:g}"
        )


def rows_with_reasoning(view: CreditView) -> dict[int, AnswerSpan]:
    """Boxes of the rows that have an answer and reasoning before it, by row."""
    return {i: box for i, box in enumerate(locate_answers(view)) if box and box.box_start}


def outcome_span(box: AnswerSpan, compare: str) -> Span:
    """The tokens whose predictions are compared."""
    return box.content_start, box.content_start + 1 if compare == "last" else box.content_end


def weights_from_importance(
    view: CreditView,
    boxes: Mapping[int, AnswerSpan],
    importances: Iterable[tuple[int, Floats]],
    quantile: float,
    boost: float,
) -> list[Floats]:
    """Token weights of every row; `importances` yields (row, I of its tokens from the start)."""
    # Answer tokens and rollouts without an importance keep a weight of 1.
    row_weights = unit_weights(view.rows)
    for i, importance_T in importances:
        reasoning = slice(boxes[i].box_start)
        row_weights[i][reasoning] = reshape_importance(importance_T[reasoning], quantile, boost)
    return row_weights
