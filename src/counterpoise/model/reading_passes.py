"""Forward passes that train nothing: what credit and the microscope need from the policy.

`update/passes.py` adds the passes that compute gradients, and `update/graphs/` runs both as CUDA
graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
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
        """Hidden states [n, D] of the response tokens, row after row, computed from the given
        embeddings; differentiable in these alone, and the gradient must be taken at once."""
        ...


class EagerReading:
    """Reading passes that run eagerly."""

    def read(self, policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
        return forward_without_grad(policy, rows, temperature)

    def states(self, policy: Policy, rows: Sequence[Row], embedded_nD: Tensor) -> Tensor:
        packing = pack_rows(policy, rows)
        tokens_N, attend = packing.tokens_N, PackedAttention(packing)
        all_embedded_ND, replaced = place_response_embeddings(
            policy, packing, tokens_N, embedded_nD
        )
        return policy.decoder(tokens_N, packing.positions_N, attend, embedded_N=all_embedded_ND)[
            replaced
        ]


def place_response_embeddings(
    policy: Policy, packing: Packing, tokens_N: Tensor, embedded_nD: Tensor
) -> tuple[Tensor, slice]:
    """(embeddings [N, D] of all tokens, slice of the n response tokens that `embedded_nD` replaces)

    The n tokens are the first of the responses, which follow all prompts in the order of the rows.
    """
    prompt_tokens = sum(length for _, length in packing.prompts)
    replaced = slice(prompt_tokens, prompt_tokens + len(embedded_nD))
    with torch.no_grad():
        original_ND = F.embedding(tokens_N, policy.decoder.embedding.weight)
    return torch.cat(
        (original_ND[: replaced.start], embedded_nD, original_ND[replaced.stop :])
    ), replaced


EAGER_READING = EagerReading()
