"""Passes that read rows and train nothing: what credit and the microscope need of the policy.

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
from counterpoise.model.scoring import Forward, once, packed
from counterpoise.types import Row


class ReadingPasses(Protocol):
    """How rows are read: as they come, or by captured passes."""

    def read(self, policy: Policy, rows: Sequence[Row], temperature: float) -> Forward:
        """Log-probabilities, entropies and hidden states, without gradients."""
        ...

    def states(self, policy: Policy, rows: Sequence[Row], embedded_nD: Tensor) -> Tensor:
        """Hidden states [n, D] of the response tokens, row after row, computed from the given
        embeddings; differentiable in these alone, and the gradient must be taken at once."""
        ...


class EagerReading:
    """Reading passes that run as they come."""

    def read(self, policy: Policy, rows: Sequence[Row], temperature: float) -> Forward:
        return once(policy, rows, temperature)

    def states(self, policy: Policy, rows: Sequence[Row], embedded_nD: Tensor) -> Tensor:
        packing = packed(policy, rows)
        tokens_N, attend = packing.tokens_N, PackedAttention(packing)
        x_ND, kept = given_for_responses(policy, packing, tokens_N, embedded_nD)
        return policy.decoder(tokens_N, packing.positions_N, attend, embedded_N=x_ND)[kept]


def given_for_responses(
    policy: Policy, packing: Packing, tokens_N: Tensor, embedded_nD: Tensor
) -> tuple[Tensor, slice]:
    """Embeddings [N, D] of all tokens, those of the first n of the responses as given, and where
    these are: responses come after all prompts, in the order of the rows."""
    start = sum(length for _, length in packing.prompts)
    kept = slice(start, start + len(embedded_nD))
    with torch.no_grad():
        own_ND = F.embedding(tokens_N, policy.decoder.embedding.weight)
    return torch.cat((own_ND[: kept.start], embedded_nD, own_ND[kept.stop :])), kept


EAGER_READING = EagerReading()
