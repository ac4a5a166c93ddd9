"""Your own token credit and step rule: functions on plain arrays, each named by an option.

    F=examples/own_token_weights.py
    poise train demo --set credit.weights=$F:surprise --set "credit.settings=['cap=2']" --dry-run
    poise train demo --set credit.weights=$F:surprise --set credit.rule=$F:spare_rare --out out/own
    poise credit $F:surprise,$F:numbers,high_entropy out/own

A parameter's name says what it gets; docs/guide/extending.md lists the names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[np.float32]]  # one array [T] for each rollout


def surprise(logprobs: Arrays, *, cap: float = 3.0) -> Arrays:
    """w = -log p over the batch's mean of it, at most `cap`: what was unexpected counts more."""
    mean = -np.concatenate(logprobs).mean()
    return [np.clip(-logprobs_T / mean, 0, cap) for logprobs_T in logprobs]


def numbers(pieces: list[list[str]], *, factor: float = 2.0) -> Arrays:
    """w = `factor` at tokens with a digit, else 1."""
    return [
        np.array([factor if any(map(str.isdigit, piece)) else 1.0 for piece in pieces_T])
        for pieces_T in pieces
    ]


def spare_rare(
    logprobs: Arrays, advantages: NDArray[np.float64], *, floor: float = -4.0
) -> list[NDArray[np.bool_]]:
    """Leave improbable tokens of wrong rollouts out: pushing them down moves the others most."""
    return [
        (logprobs_T > floor) | (advantage > 0)
        for logprobs_T, advantage in zip(logprobs, advantages, strict=True)
    ]
