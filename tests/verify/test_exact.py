"""Boxed text equal to the answer, white space aside."""

import pytest

from counterpoise.variants import VERIFIERS


def test_scores():
    responses = [
        r"\boxed{red  car}",
        "\\boxed{red\ncar}",
        r"\boxed{Red car}",
        "red car",
        r"\boxed{}",
    ]
    scores = VERIFIERS.load("exact")().score(responses, ["red car"] * 5)
    assert scores.rewards == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert (scores.timeouts, scores.crashes) == (0, 0)


def test_lengths_must_match():
    with pytest.raises(ValueError, match="shorter"):
        VERIFIERS.load("exact")(timeout_seconds=5.0, workers=2).score(["a"], [])
