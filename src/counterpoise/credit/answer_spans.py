r"""Which tokens of a response hold its boxed answer.

    tokens     so  x  =  \boxed  {  1  2  }  .
    reasoning  <------>                             mark = 3
    marker               <------>                   start = 5
    content                         <--->           end = 7
    brace                                 |         close = 8

A token that holds a character of the content is content, whatever else it holds. Tokens are read
one by one: a character that tokens cut in two shows as U+FFFD, which moves no brace. No balanced
box, or nothing in it: there is no answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.model.pieces import split_into_pieces
from counterpoise.model.transfer import to_device
from counterpoise.verify.math.boxed import boxes


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Places in the response, in tokens.

    Example:
        AnswerSpan(mark=3, start=5, end=7, close=8)
    """

    box_start: int  # the first token of the box; what comes before is reasoning
    content_start: int  # the first token of the content
    content_end: int  # one past its last
    box_end: int  # one past the token with the closing brace


def locate_answers(view: CreditView, *, first_box: bool = False) -> list[AnswerSpan | None]:
    """Of every row: the box that the verifier reads, the last, or the first one."""
    if any(row.content.turns for row in view.rows):
        raise PoiseError(
            "grail, oar_g and oar_p look at one answer of one response, not at an episode: "
            "set credit.weights to another, or task.environment=none"
        )
    responses = [row.content.response_tokens for row in view.rows]
    return [
        locate_answer(pieces, first_box=first_box)
        for pieces in split_into_pieces(view.policy, responses)
    ]


def span_indices(
    spans: Sequence[tuple[int, int]] | NDArray[np.integer], device: torch.device
) -> Tensor:
    """Every place of the spans [start, end), span after span: [n]."""
    start_B, end_B = np.array(spans, dtype=np.int64).T
    lengths_B = end_B - start_B
    shift_B = start_B - (np.cumsum(lengths_B) - lengths_B)
    return to_device(np.arange(lengths_B.sum()) + np.repeat(shift_B, lengths_B), device)


def locate_answer(pieces: Sequence[str], *, first_box: bool = False) -> AnswerSpan | None:
    """The answer of a response given as the texts of its tokens."""
    text = "".join(pieces)
    found = boxes(text)
    if not found:
        return None
    box = min(found) if first_box else max(found)
    content = text[box.start : box.end]
    start = box.start + len(content) - len(content.lstrip())
    end = box.start + len(content.rstrip())
    if start >= end:
        return None
    ends_T = list(accumulate(map(len, pieces)))

    def token_at(character: int) -> int:
        return bisect_right(ends_T, character)

    return AnswerSpan(
        token_at(box.mark), token_at(start), token_at(end - 1) + 1, token_at(box.end) + 1
    )
