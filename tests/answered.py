r"""Responses with boxed answers for a random model: a tokenizer whose pieces can be read back.

tokens   1 end   2 `\boxed`   3 `{`   4 `}`   5 to 14 digits   15 and on words
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tiny
import torch

from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.types import Rollout, Row

END, BOXED, OPEN, CLOSE, ZERO, WORD = 1, 2, 3, 4, 5, 15


class Pieces(tiny.Words):
    """Token i has a text of its own, and texts of tokens are put side by side."""

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(piece(i) for i in ids)


def piece(i: int) -> str:
    if i >= WORD:
        return f" w{i}"
    return {END: "", BOXED: "\\boxed", OPEN: "{", CLOSE: "}"}.get(i, str(i - ZERO))


def policy(**changes: object) -> Policy:
    """In float64: gradients of gradients' size are compared."""
    made = replace(tiny.policy(**changes), tokenizer=Pieces())  # type: ignore[arg-type]
    made.model.double()
    return made


def box(*digits: int) -> list[int]:
    return [BOXED, OPEN, *(ZERO + d for d in digits), CLOSE]


def row(tokens: list[int], advantage: float, index: int = 0, prompt: int = 0) -> Row:
    rng = np.random.default_rng(prompt)
    question = rng.integers(WORD, tiny.VOCABULARY, 3 + prompt).astype(np.int32)
    response = np.array(tokens, dtype=np.int32)
    reward = float(advantage > 0)
    guessed = np.full(len(tokens), -1.0, dtype=np.float32)
    rollout = Rollout(
        f"p{prompt}", f"question {prompt}", "7", "", reward, question, response, guessed
    )
    return Row(f"1:p{prompt}", advantage, len(tokens), index, 1, rollout)


def rows(seed: int = 0) -> list[Row]:
    """Two groups: boxes of one and of more digits, two boxes, none, reasoning long and absent."""
    rng = np.random.default_rng(seed)

    def words(n: int) -> list[int]:
        return rng.integers(WORD, tiny.VOCABULARY, n).tolist()

    responses = [
        [*words(7), *box(1), END],
        [*words(12), *box(1, 2, 3), *words(2), END],
        words(6),
        [*box(4), END],
        [*words(3), *box(2), *words(4), *box(9, 8), END],
        [*words(9), *box(5, 0)],
        [words(1)[0], *box(6)],
        words(1),
    ]
    advantages = [1.0, -1.0, -0.5, 0.5, -1.0, 1.0, -0.7, 0.7]
    return [
        row(tokens, advantage, index=i % 4, prompt=i // 4)
        for i, (tokens, advantage) in enumerate(zip(responses, advantages, strict=True))
    ]


def view(made: Policy, given: list[Row], tokens: int = 40, temperature: float = 0.8) -> CreditView:
    return CreditView(
        given, PolicyReader(made, temperature, FittedSize(tokens), iteration=3, seed=5)
    )


def hidden(made: Policy, row: Row, embedded: torch.Tensor) -> torch.Tensor:
    """Hidden states of prompt and response by transformers, from embeddings [S + T, D]."""
    found: torch.Tensor = made.model.model(inputs_embeds=embedded[None]).last_hidden_state[0]
    return found


def ids(row: Row) -> torch.Tensor:
    content = row.content
    return torch.from_numpy(
        np.concatenate((content.prompt_tokens, content.response_tokens)).astype(np.int64)
    )
