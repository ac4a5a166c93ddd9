r"""Which tokens hold the boxed answer."""

from __future__ import annotations

import answered
import numpy as np
import pytest

from counterpoise.config import ModelConfig
from counterpoise.credit.answer_spans import AnswerSpan, locate_answer, locate_answers
from counterpoise.model.load import load_policy
from counterpoise.model.pieces import split_into_pieces
from counterpoise.verify.math.boxed import extract_boxed


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["so", " x", " =", " \\boxed", "{", "1", "2", "}", "."], AnswerSpan(3, 5, 7, 8)),
        (["\\", "boxed", "{", "12", "}"], AnswerSpan(0, 3, 4, 5)),
        (
            ["a", "\\boxed{", "12", "}.", "", ""],
            AnswerSpan(1, 2, 3, 4),
        ),  # special tokens at the end
        (["a", "\\boxed{12}"], AnswerSpan(1, 1, 2, 2)),  # one token is all of it
        (["\\boxed", "{1", "2}", "!"], AnswerSpan(0, 1, 3, 3)),  # content is what holds any of it
        (
            ["\\boxed", "{", " ", "7", " ", "}"],
            AnswerSpan(0, 3, 4, 6),
        ),  # white space is not content
        (["\\boxed", " {", "", "7", "}"], AnswerSpan(0, 3, 4, 5)),
        (
            ["\\boxed{", "\ufffd", "\ufffd", "}"],
            AnswerSpan(0, 1, 3, 4),
        ),  # a character in two tokens
        (["\\boxed{", "{", "1", "}", "}"], AnswerSpan(0, 1, 4, 5)),
        (["\\boxed", "{", "}"], None),
        (["\\boxed", "{", " ", "}"], None),
        (["\\boxed", "{", "4"], None),  # cut off
        (["the", " answer", " is", " 4"], None),
        ([], None),
    ],
)
def test_places(pieces: list[str], expected: AnswerSpan | None) -> None:
    assert locate_answer(pieces) == expected


def test_of_several_boxes_the_last_unless_the_first_is_asked_for() -> None:
    pieces = ["a", "\\boxed{", "1", "}", "b", "\\boxed{", "2", "}"]
    assert locate_answer(pieces) == AnswerSpan(5, 6, 7, 8)
    assert locate_answer(pieces, first_box=True) == AnswerSpan(1, 2, 3, 4)
    nested = ["\\boxed{", "x", "\\boxed{", "2", "}", "}"]
    assert locate_answer(nested) == AnswerSpan(2, 3, 4, 5)
    assert locate_answer(nested, first_box=True) == AnswerSpan(0, 1, 5, 6)
    unfinished = ["\\boxed{", "\\boxed{", "2", "}"]
    assert locate_answer(unfinished, first_box=True) == AnswerSpan(1, 2, 3, 4)


def test_rows_of_a_view() -> None:
    found = locate_answers(answered.view(answered.policy(), answered.rows()))
    assert found == [
        AnswerSpan(7, 9, 10, 11),
        AnswerSpan(12, 14, 17, 18),
        None,
        AnswerSpan(0, 2, 3, 4),
        AnswerSpan(11, 13, 15, 16),
        AnswerSpan(9, 11, 13, 14),
        AnswerSpan(1, 3, 4, 5),
        None,
    ]
    assert locate_answers(answered.view(answered.policy(), [])) == []


def test_the_embedded_tokenizer() -> None:
    policy = load_policy(ModelConfig(device="cpu"))
    texts = [
        "3 + 4 = 7, so he has 7 pens.\n\\boxed{7}",
        "so \\boxed{1} or rather \\boxed{  25 } pens, na\u00efve \u2603.",
        "10 / 2 = 5. 5 pens",
    ]
    tokens = [np.array(policy.tokenizer.encode(t, add_special_tokens=False)) for t in texts]
    tokens = [np.append(t, policy.end_tokens[0]).astype(np.int32) for t in tokens]
    for text, ids, pieces in zip(texts, tokens, split_into_pieces(policy, tokens), strict=True):
        where = locate_answer(pieces)
        if extract_boxed(text) is None:
            assert where is None
            continue
        assert where is not None
        assert policy.decode(ids[where.content_start : where.content_end]).strip() == extract_boxed(
            text
        )
        assert "\\boxed" not in policy.decode(ids[where.content_end :])
        assert "}" in policy.decode(ids[where.content_end : where.box_end])
        whole = policy.decode(ids[where.box_start : where.box_end]).strip()
        assert whole.startswith("\\boxed")
        assert whole.endswith("}")
