r"""Which tokens of a response hold its boxed answer.

    tokens     so  x  =  \boxed  {  1  2  }  .
    reasoning  <------>                             box_start = 3
    marker               <------>                   content_start = 5
    content                         <--->           content_end = 7
    brace                                 |         box_end = 8

A token that holds a character of the content counts as content, whatever else it holds. Tokens are
decoded one by one: a character split between two tokens shows as U+FFFD, and every brace is still
found in its own token.
Without a balanced, non-empty box there is no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.model.pieces import split_into_pieces, token_span
from counterpoise.verify.math.boxed import find_boxes


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Token positions of a boxed answer within the response.

    Example:
        AnswerSpan(box_start=3, content_start=5, content_end=7, box_end=8)
    """

    box_start: int  # the first token of the box; everything before it is reasoning
    content_start: int  # the first token of the content
    content_end: int  # one past its last
    box_end: int  # one past the token with the closing brace


def locate_answers(view: CreditView, *, first_box: bool = False) -> list[AnswerSpan | None]:
    """The answer of every row: its last box, which the verifier reads, or its first box."""
    policy = view.policy
    if any(row.content.turns for row in view.rows):
        raise PoiseError(
            "grail, oar_g and oar_p need one answer in one response, not an episode: choose "
            "another credit.weights, or set task.environment=none"
        )
    responses = [row.content.response_tokens for row in view.rows]
    return [
        locate_answer(pieces, first_box=first_box)
        for pieces in split_into_pieces(policy, responses)
    ]


def locate_answer(pieces: Sequence[str], *, first_box: bool = False) -> AnswerSpan | None:
    """The answer of a response that is given as the texts of its tokens."""
    response_text = "".join(pieces)
    candidates = find_boxes(response_text)
    if not candidates:
        return None
    box = min(candidates) if first_box else max(candidates)
    content = response_text[box.start : box.end]
    content_start = box.start + len(content) - len(content.lstrip())
    content_end = box.start + len(content.rstrip())
    if content_start >= content_end:
        return None
    box_start, box_end = token_span(pieces, box.command_start, box.end + 1)
    return AnswerSpan(box_start, *token_span(pieces, content_start, content_end), box_end)
