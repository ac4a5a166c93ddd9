"""Rows -> log-probabilities of their response tokens, by the trainer, in memory-sized pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise.policy.attention import PackedAttention
from counterpoise.policy.head import token_logprobs
from counterpoise.policy.load import Policy
from counterpoise.policy.packing import pack
from counterpoise.types import Floats, Row


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """One micro-batch's pass. M: response tokens, flat in the order of the rows."""

    logprobs_M: Tensor
    entropies_M: Tensor
    hidden_M: Tensor  # [M, D], the input of the unembedding
    lengths: tuple[int, ...]

    def by_row(self, values_M: Tensor) -> list[Floats]:
        return [part.detach().float().cpu().numpy() for part in values_M.split(self.lengths)]


def forward(policy: Policy, rows: Sequence[Row], temperature: float) -> Forward:
    contents = [row.content for row in rows]
    packing = pack(
        [c.prompt_tokens for c in contents], [c.response_tokens for c in contents], policy.device
    )
    policy.decoder.reserve(packing.longest)
    hidden_N = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
    hidden_M = hidden_N.index_select(0, packing.predictors_M)
    logprobs, entropies = token_logprobs(
        hidden_M, policy.decoder.unembedding, packing.targets_M, temperature
    )
    return Forward(logprobs, entropies, hidden_M, packing.lengths)


def micro_batches(rows: Sequence[Row], micro_tokens: int) -> Iterator[list[int]]:
    """Positions of the rows of each pass: groups together (they share a prompt), then by length.

    A row longer than `micro_tokens` gets a pass of its own.
    """
    heaviest = {row.group: 0 for row in rows}
    for row in rows:
        heaviest[row.group] = max(heaviest[row.group], row.num_tokens)
    order = sorted(range(len(rows)), key=lambda i: (heaviest[rows[i].group], rows[i].group, i))
    batch: list[int] = []
    tokens = 0
    prompt = ""
    for i in order:
        row = rows[i]
        cost = row.num_tokens + (
            len(row.content.prompt_tokens) if row.group != prompt or not batch else 0
        )
        if batch and tokens + cost > micro_tokens:
            yield batch
            batch, tokens = [], 0
            cost = row.num_tokens + len(row.content.prompt_tokens)
        batch.append(i)
        tokens += cost
        prompt = row.group
    if batch:
        yield batch


@torch.no_grad()
def score(
    policy: Policy, rows: Sequence[Row], temperature: float, micro_tokens: int
) -> list[Floats]:
    """Log-probability of every response token under the policy as it is now, per row [T]."""
    logprobs: list[Floats | None] = [None] * len(rows)
    for batch in micro_batches(rows, micro_tokens):
        result = forward(policy, [rows[i] for i in batch], temperature)
        for i, values in zip(batch, result.by_row(result.logprobs_M), strict=True):
            logprobs[i] = values
    return [values for values in logprobs if values is not None]
