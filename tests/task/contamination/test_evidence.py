"""Weighted overlap, against sums written out."""

import math

import pytest

from counterpoise.task.contamination.evidence import EvidenceIndex, extract_features

TRAIN = [
    "Find $x$ with $x^2 = 49$ where seven swans swim",
    "Find all primes below $100$",
    "Compute $x^2 = 49$ minus a swan",
]
ITEM = "Find $x$ with $x^2 = 49$ where seven swans sleep"


def weights(everything):
    count = {}
    for one in everything:
        for name in one.words | one.symbols:
            count[name] = count.get(name, 0) + 1
    return {name: math.log(len(everything) / n) for name, n in count.items()}


def test_features_of_a_formula():
    found = extract_features("Find $x^2=4$")
    assert found.words == {"w:find"}
    assert found.symbols == {
        "x ^ 2 = 4", "2", "4", "x ^", "^ 2", "2 =", "= 4", "x ^ 2", "^ 2 =", "2 = 4",
    }  # fmt: skip
    assert found.numbers == {"2": 1, "4": 1}


def test_drawings_are_left_out():
    assert extract_features("Find it. [asy] draw((0,0)--(1,1)); [/asy]").symbols == frozenset()


def test_shares_are_the_weighted_sums():
    train, item = [extract_features(text) for text in TRAIN], extract_features(ITEM)
    index = EvidenceIndex.build(train, [item])
    w = weights([*train, item])
    for place, one in enumerate(train):
        everything = one.words | one.symbols, item.words | item.symbols
        shared = sum(w[name] for name in everything[0] & everything[1])
        shares = index.evidence(place, item)
        assert shares.contained == pytest.approx(shared / sum(w[name] for name in everything[1]))
        union = sum(w[name] for name in everything[0] | everything[1])
        assert shares.similarity == pytest.approx(shared / union)
        symbols = sum(w[name] for name in one.symbols & item.symbols)
        assert shares.symbol_weight == pytest.approx(symbols)
    assert index.evidence(0, item).symbol_similarity == pytest.approx(1.0)
    assert index.evidence(1, item).missing_number_share == pytest.approx(1.0)
    assert index.evidence(2, item).missing_number_share == pytest.approx(1 / 3)  # `seven`


def test_candidates_share_something_rare():
    train, item = [extract_features(text) for text in TRAIN], extract_features(ITEM)
    index = EvidenceIndex.build(train, [item])
    assert index.candidates(item) == [0, 1, 2]  # "find" is rare in a world of four problems
    assert index.candidates(extract_features("nothing of it")) == []
