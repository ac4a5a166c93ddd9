"""Rows that were told something in between, and what transformers makes of them as they are read.

Nothing of ours is used to weave: every token says by itself whether it is trained.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tiny
import torch

from counterpoise.model.load import Policy
from counterpoise.types import Row, Turn


def told_row(row: Row, seed: int) -> Row:
    """The row with one or two interruptions of one to five tokens, if it has the length."""
    rng = np.random.default_rng(seed)
    T = row.num_tokens
    starts = sorted(rng.choice(np.arange(1, T), size=min(T - 1, 1 + seed % 2), replace=False))
    turns = [Turn(0, np.empty(0, np.int32), (0, 1), "no")]
    for start in map(int, starts):
        told = rng.integers(2, tiny.VOCABULARY, rng.integers(1, 6)).astype(np.int32)
        turns.append(Turn(start, told, (start, start + 1), "no"))
    return replace(row, rollout=replace(row.content, turns=tuple(turns)))


def rows(**options: int) -> list[Row]:
    """Told ones and, every third, one that nobody answered."""
    made = tiny.rows(**options)
    return [row if i % 3 == 2 else told_row(row, i) for i, row in enumerate(made)]


def as_read(row: Row) -> tuple[list[int], list[bool]]:
    """Prompt and response token by token, and which of them are trained."""
    content = row.content
    before = {turn.start: turn.observation.tolist() for turn in content.turns}
    tokens, trained = content.prompt_tokens.tolist(), [False] * len(content.prompt_tokens)
    for t, token in enumerate(content.response_tokens.tolist()):
        told = before.get(t, [])
        tokens += [*told, token]
        trained += [*[False] * len(told), True]
    return tokens, trained


def logits(policy: Policy, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the trained tokens: the logits [T, V] that predict them, and the tokens [T]."""
    tokens, trained = as_read(row)
    ids = torch.tensor(tokens)
    places = torch.tensor([i for i, mine in enumerate(trained) if mine])
    return policy.model(ids[None]).logits[0][places - 1], ids[places]


def logprobs(policy: Policy, row: Row, temperature: float = 1.0) -> torch.Tensor:
    found, targets = logits(policy, row)
    return (found / temperature).log_softmax(-1).gather(1, targets[:, None])[:, 0]
