"""The output-layer kernel as its definition says: the gradient of every token, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.load import Policy
from counterpoise.types import Rollout, Row


def gradients(policy: Policy, row: Row, temperature: float) -> list[Tensor]:
    """T * d log pi(o_t) / dW [V, D] for every token of a row, by autograd; W the unembedding's."""
    prompt, response = row.content.prompt_tokens, row.content.response_tokens
    ids = torch.from_numpy(np.concatenate((prompt, response))).long()
    with torch.no_grad():
        hidden = policy.model.model(ids[None]).last_hidden_state[0].double()
    W = policy.decoder.unembedding.detach().double().requires_grad_()
    found = []
    for t, token in enumerate(response.tolist()):
        logits = hidden[len(prompt) + t - 1] @ W.T / temperature
        logprob = torch.log_softmax(logits, dim=0)[token]
        found.append(torch.autograd.grad(logprob, W)[0] * temperature)
    return found


def kernel(policy: Policy, rows: Sequence[Row], temperature: float) -> np.ndarray:
    """K [N, N] over the tokens of all rows."""
    flat = [g.flatten() for row in rows for g in gradients(policy, row, temperature)]
    G = torch.stack(flat)
    return (G @ G.T).numpy()


def row_of(rows: Sequence[Row]) -> list[int]:
    """The row of every token."""
    return [i for i, row in enumerate(rows) for _ in range(row.num_tokens)]


def made(
    group: str, index: int, advantage: float, response: Sequence[int], prompt: Sequence[int] = (5,)
) -> Row:
    """A row by hand."""
    tokens = np.array(response, dtype=np.int32)
    rollout = Rollout(
        group, group, "", "", float(advantage > 0), np.array(prompt, dtype=np.int32), tokens,
        np.full(len(tokens), -0.5, np.float32),
    )  # fmt: skip
    return Row(group, float(advantage), len(tokens), index=index, rollout=rollout)


def with_advantages(rows: Sequence[Row], advantages: Sequence[float]) -> list[Row]:
    return [replace(row, advantage=float(a)) for row, a in zip(rows, advantages, strict=True)]
