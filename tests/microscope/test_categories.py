from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from counterpoise.config import ModelConfig
from counterpoise.microscope.categories import (
    CATEGORIES,
    character_categories,
    load_nltk_tagger,
    token_categories,
    token_texts,
)
from counterpoise.model.load import load_policy

WORD_PROBLEM = (
    "He now has 37 + 40 = 77 cards. That leaves 44 - 26 = 15 cards. The answer is \\boxed{15}."
)


def kinds(text: str, tagger=None) -> dict[str, str]:
    """Category of each word, number, command or mark, by its text; the first where it repeats."""
    of = character_categories(text, tagger)
    found: dict[str, str] = {}
    for piece in re.finditer(r"\\\w+\{?|\d[\d.,]*\d|\w+|[^\w\s]", text):
        assert len(set(of[piece.start() : piece.end()])) == 1, piece[0]
        found.setdefault(piece[0], of[piece.start()])
    return found


def test_a_word_problem() -> None:
    found = kinds(WORD_PROBLEM)
    assert {found[x] for x in ("37", "40", "77", "15")} == {"number"}
    assert {found[x] for x in ("+", "-", "=")} == {"latex"}
    assert {found[x] for x in ("cards", "leaves")} == {"content"}
    assert {found[x] for x in ("He", "now", "has", "That")} == {"function"}
    assert {found[x] for x in ("The", "answer", "is", "\\boxed{", "}", ".")} == {"template"}


def test_a_response_in_markdown_and_latex() -> None:
    text = (
        "## Solution\n\nStep 1: let \\(x + y = 10\\) and $x^2 = \\frac{a}{b}$, where "
        "$n = 3 \\text{ apples}$.\n\n- Therefore, **each** student pays $5 and $7.\n"
        "1. hence\n\\[\\sqrt{2}\\]\nThe final answer is $\\boxed{\\frac{1}{2}}$.<|im_end|>"
    )
    found = kinds(text)
    assert {found[x] for x in ("x", "y", "n", "\\frac{", "\\sqrt{", "^", "$", "a", "b")} == {
        "latex"
    }
    assert {found[x] for x in ("10", "5", "7", "3")} == {"number"}
    assert {found[x] for x in ("apples", "student", "pays")} == {"content"}
    assert {found[x] for x in ("and", "where", "each", "let")} == {"function"}
    template = ("#", "Solution", "Step", ":", "Therefore", "*", "hence", "answer", "final")
    assert {found[x] for x in template} == {"template"}
    of = character_categories(text)
    assert of[text.index("}}$.") + 1] == "template"  # the brace of the box, not that of \frac
    assert of[text.index("}}$.")] == "latex"
    assert set(of[text.index("<|im_end|>") :]) == {"template"}
    assert set(of[text.index("1. hence") : text.index("1. hence") + 2]) == {"template"}


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("it costs $5 and $7", "and", "function"),  # money is no formula
        ("a well-known fact", "-", "content"),  # a hyphen is no minus
        ("7 - 3", "-", "latex"),
        ("(3 + 4)", "(", "latex"),
        ("(as above)", "(", "template"),
        ("$f(a, b)$", ",", "latex"),
        ("3.5% of", ".", "number"),
        ("1,250 pens", ",", "number"),
        ("I have a pen", "a", "function"),
        ("solve for k now", "k", "latex"),
        ("twelve pens", "t", "number"),
        ("don't", "'", "function"),
        ("Größe", "ö", "content"),
        ("☃", "☃", "other"),
        ("\\boxed{3", "3", "number"),  # cut off within the box
        ("<think>", "t", "template"),
        ("x", "x", "latex"),
    ],
)
def test_single_cases(text: str, at: str, expected: str) -> None:
    if at == "a" and text.startswith("I have"):
        assert character_categories(text)[text.index(" a ") + 1] == expected
    else:
        assert character_categories(text)[text.index(at)] == expected


def test_nothing_to_categorise() -> None:
    assert character_categories("") == []
    assert token_categories([]) == []
    assert token_categories([""]) == ["other"]


def test_tokens_take_the_category_of_their_word() -> None:
    pieces = [
        "The",
        " ans",
        "wer",
        " is",
        " ",
        "1",
        "7",
        " ap",
        "ples",
        ".\n\n",
        "\\box",
        "ed",
        "{",
    ]
    assert token_categories(pieces) == [
        *["template"] * 5,
        *["number"] * 2,
        *["content"] * 2,
        *["template"] * 4,
    ]


def test_a_tagger_decides_between_the_classes_of_words() -> None:
    def tagger(words: list[str]) -> list[str]:
        tags = {"brisk": "JJ", "amid": "IN", "whee": "UH", "umpteen": "CD", "is": "VBZ"}
        return [tags.get(word, "NN") for word in words]

    found = kinds("whee brisk is amid umpteen trees", tagger)
    assert found == {
        "whee": "other",
        "brisk": "content",
        "is": "function",
        "amid": "function",
        "umpteen": "number",
        "trees": "content",
    }


def test_texts_of_tokens_join_to_the_response() -> None:
    tokenizer = load_policy(ModelConfig(device="cpu")).tokenizer
    ids = tokenizer.encode(WORD_PROBLEM, add_special_tokens=False)
    ids.append(tokenizer.eos_token_id)
    texts = token_texts(tokenizer, np.array(ids, dtype=np.int32))
    assert len(texts) == len(ids)
    assert "".join(texts[:-1]) == WORD_PROBLEM
    count = Counter(token_categories(texts))
    assert set(count) <= set(CATEGORIES)
    assert count["number"] == sum(map(str.isdigit, WORD_PROBLEM))


def test_a_character_of_several_tokens_belongs_to_all_of_them() -> None:
    class Bytes:
        def decode(self, ids: list[int], **_: object) -> str:
            return bytes(ids).decode(errors="replace")

    text = "Größe ☃ 5"
    texts = token_texts(Bytes(), list(text.encode()))
    assert "".join(texts) == text
    found = token_categories(texts)
    assert found[:7] == ["content"] * 7  # G r ö(2) ß(2) e
    assert found[8:11] == ["other"] * 3
    assert found[-1] == "number"


def test_broken_characters_end_a_response() -> None:
    class Bytes:
        def decode(self, ids: list[int], **_: object) -> str:
            return bytes(ids).decode(errors="replace")

    texts = token_texts(Bytes(), [*b"4", 0xE2, 0x98])
    assert len(texts) == 3
    assert len(token_categories(texts)) == 3


def test_nltk_is_used_only_where_it_is_complete() -> None:
    tagger = load_nltk_tagger()
    assert tagger is None or tagger(["the", "pens"]) == ["DT", "NNS"]
