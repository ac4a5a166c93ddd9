"""Weighted overlap, against sums written out."""

import math

import pytest

from counterpoise.task.contamination.evidence import Index, features

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
    found = features("Find $x^2=4$")
    assert found.words == {"w:find"}
    assert found.symbols == {
        "x ^ 2 = 4", "2", "4", "x ^", "^ 2", "2 =", "= 4", "x ^ 2", "^ 2 =", "2 = 4",
    }  # fmt: skip
    assert found.numbers == {"2": 1, "4": 1}


def test_drawings_are_left_out():
    assert features("Find it. [asy] draw((0,0)--(1,1)); [/asy]").symbols == frozenset()


def test_shares_are_the_weighted_sums():
    train, item = [features(text) for text in TRAIN], features(ITEM)
    index = Index.build(train, [item])
    w = weights([*train, item])
    for place, one in enumerate(train):
        everything = one.words | one.symbols, item.words | item.symbols
        shared = sum(w[name] for name in everything[0] & everything[1])
        shares = index.shares(place, item)
        assert shares.contained == pytest.approx(shared / sum(w[name] for name in everything[1]))
        union = sum(w[name] for name in everything[0] | everything[1])
        assert shares.alike == pytest.approx(shared / union)
        symbols = sum(w[name] for name in one.symbols & item.symbols)
        assert shares.symbols_weight == pytest.approx(symbols)
    assert index.shares(0, item).symbols_alike == pytest.approx(1.0)
    assert index.shares(1, item).numbers_missing == pytest.approx(1.0)
    assert index.shares(2, item).numbers_missing == pytest.approx(1 / 3)  # `seven`


def test_candidates_share_something_rare():
    train, item = [features(text) for text in TRAIN], features(ITEM)
    index = Index.build(train, [item])
    assert index.candidates(item) == [0, 1, 2]  # "find" is rare in a world of four problems
    assert index.candidates(features("nothing of it")) == []
