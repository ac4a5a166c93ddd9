r"""Faulty reward functions that planted runs train with, named MODULE:FUNCTION in `verify.name`.

Each is a mistake that people make: a comparison of texts where numbers are meant, a constant, a
coin that decides between two verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from counterpoise.verify.math.boxed import extract_boxed

TURNED_EVERY = 5  # one verdict in this many is turned round


def compares_texts(responses: Sequence[str], answers: Sequence[str]) -> list[float]:
    r"""1 if the box holds the same characters as the reference: rejects 11 for \frac{22}{2}."""
    return [
        float((extract_boxed(response) or "").strip() == answer.strip())
        for response, answer in zip(responses, answers, strict=True)
    ]


def always_right(responses: Sequence[str], answers: Sequence[str]) -> list[float]:
    """1 whatever the response says."""
    return [1.0] * len(responses)


def flaky(responses: Sequence[str], answers: Sequence[str]) -> list[float]:
    """The right verdict, turned round for one response in TURNED_EVERY.

    The position in the list decides, so equal responses to one prompt get different rewards.
    """
    rewards = compares_texts(responses, answers)
    return [
        1.0 - reward if _is_turned(index, response) else reward
        for index, (response, reward) in enumerate(zip(responses, rewards, strict=True))
    ]


def _is_turned(index: int, response: str) -> bool:
    digest = blake2b(f"{index}:{len(response)}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % TURNED_EVERY == 0
