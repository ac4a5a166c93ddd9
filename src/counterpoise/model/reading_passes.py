"""Forward passes that train nothing: what credit and the microscope need from the policy.

`update/passes.py` adds the passes that compute gradients, and `update/graphs/` runs both as CUDA
graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from counterpoise.model.attention import PackedAttention
from counterpoise.model.load import Policy
from counterpoise.model.packing import Packing
from counterpoise.model.scoring import ForwardOutputs, forward_without_grad, pack_rows
from counterpoise.types import Row


class ReadingPasses(Protocol):
    """Forward passes without weight gradients: eager, or captured as CUDA graphs."""

    def read(self, policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
        """Log-probabilities, entropies and hidden states, without gradients."""
        ...

    def states(self, policy: Policy, rows: Sequence[Row], embedded_nD: Tensor) -> Tensor:
        """Hidden states [n, D] of the response tokens, row after row, from their embeddings.

        They are differentiable in `embedded_nD` alone. The gradient must be taken before the next
        pass, which reuses the memory of a CUDA graph.
        """
        ...


class EagerReading:
    """Reading passes that run eagerly."""

    def read(self, policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
        return forward_without_grad(policy, rows, temperature)

    def states(self, policy: Policy, rows: Sequence[Row], embedded_nD: Tensor) -> Tensor:
        packing = pack_rows(policy, rows)
        tokens_N, attend = packing.tokens_N, PackedAttention(packing)
        embedded_ND, responses = place_response_embeddings(policy, packing, tokens_N, embedded_nD)
        hidden_ND = policy.decoder(tokens_N, packing.positions_N, attend, embedded_N=embedded_ND)
        return hidden_ND[responses]


def place_response_embeddings(
    policy: Policy, packing: Packing, tokens_N: Tensor, embedded_nD: Tensor
) -> tuple[Tensor, slice]:
    """Put the given embeddings in place of those of the first n response tokens.

    Returns the embeddings [N, D] of all tokens, and the slice of the n tokens among them. Responses
    follow all prompts, in the order of the rows. What comes after the n tokens is filler, by
    which a CUDA graph reaches its fixed size.
    """
    prompt_tokens = sum(length for _, length in packing.prompts)
    responses = slice(prompt_tokens, prompt_tokens + len(embedded_nD))
    with torch.no_grad():
        original_ND = policy.decoder.embed(tokens_N)
    prompt_embeddings = original_ND[: responses.start]
    filler_embeddings = original_ND[responses.stop :]
    return torch.cat((prompt_embeddings, embedded_nD, filler_embeddings)), responses


EAGER_READING = EagerReading()
