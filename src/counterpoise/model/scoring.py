"""Rows -> log-probabilities of their response tokens, by the trainer, in memory-sized pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from counterpoise.model.attention import PackedAttention
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.head import token_logprobs
from counterpoise.model.load import Policy
from counterpoise.model.packing import Packing, pack, prompt_key
from counterpoise.types import Floats, Row


@dataclass(frozen=True, slots=True, eq=False)
class ForwardOutputs:
    """One micro-batch's pass. M: response tokens, flat in the order of the rows."""

    logprobs_M: Tensor
    entropies_M: Tensor
    hidden_M: Tensor  # [M, D], the input of the unembedding
    lengths: tuple[int, ...]


ForwardPass = Callable[[Policy, Sequence[Row], float], ForwardOutputs]  # without gradients
RowSplitter = Callable[[Sequence[Row], int], Iterator[list[int]]]  # rows -> those of each pass


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What passes found. It stays where the policy is until the host asks for it, and waits."""

    rows: Sequence[Row]
    order: Sequence[int]  # in which they were walked
    values_2N: Tensor  # log-probabilities and entropies, in this order
    hidden: list[Tensor]  # per row [T, D]

    @cached_property
    def logprobs(self) -> list[Floats]:
        """Per row [T]."""
        return split_by_row(self.values_2N[0], self.order, self.rows)

    @cached_property
    def entropies(self) -> list[Floats]:
        return split_by_row(self.values_2N[1], self.order, self.rows)


def forward(
    policy: Policy, rows: Sequence[Row], temperature: float, *, checkpointing: bool = False
) -> ForwardOutputs:
    """`checkpointing`: the backward pass computes each layer again instead of keeping it."""
    packing = pack_rows(policy, rows)
    attend = PackedAttention(packing)
    return forward_packed(policy, packing, attend, temperature, checkpointing=checkpointing)


def pack_rows(policy: Policy, rows: Sequence[Row]) -> Packing:
    contents = [row.content for row in rows]
    packing = pack(
        [c.prompt_tokens for c in contents],
        [c.response_tokens for c in contents],
        policy.device,
        [c.told for c in contents],
    )
    policy.decoder.reserve(packing.longest)
    return packing


def forward_packed(
    policy: Policy,
    packing: Packing,
    attend: PackedAttention,
    temperature: float,
    *,
    checkpointing: bool = False,
) -> ForwardOutputs:
    """The pass itself: it reads tensors and weights, and nothing else."""
    decoder = policy.decoder
    hidden_M = _body(policy, packing, attend, checkpointing)
    logprobs, entropies = token_logprobs(
        hidden_M, decoder.unembedding, packing.targets_M, temperature
    )
    return ForwardOutputs(logprobs, entropies, hidden_M, packing.lengths)


def _body(
    policy: Policy, packing: Packing, attend: PackedAttention, checkpointing: bool = False
) -> Tensor:
    """Hidden states [M, D] that predict the response tokens."""
    hidden_N = policy.decoder(
        packing.tokens_N, packing.positions_N, attend, checkpoint=checkpointing
    )
    return hidden_N.index_select(0, packing.predictors_M)


def hidden_states(policy: Policy, rows: Sequence[Row]) -> Tensor:
    """One pass without gradients and without the head: what predicts the response tokens [M, D]."""
    with torch.no_grad():
        packing = pack_rows(policy, rows)
        return _body(policy, packing, PackedAttention(packing))


def micro_batches(rows: Sequence[Row], micro_tokens: int) -> Iterator[list[int]]:
    """Positions of the rows of each pass: those of a prompt side by side, then by length.

    A pass computes a prompt once, and flash attention wants its readers together, also where two
    groups have the same one. No more passes than needed, and those about equally long: a short last
    one would leave a GPU idle. A row longer than `micro_tokens` gets a pass of its own.
    """
    keys = [prompt_key(row.content.prompt_tokens) for row in rows]
    prompts = {key: len(row.content.prompt_tokens) for key, row in zip(keys, rows, strict=True)}
    heaviest, first = dict.fromkeys(keys, 0), dict[bytes, str]()
    for key, row in zip(keys, rows, strict=True):
        heaviest[key] = max(heaviest[key], row.num_read)
        first[key] = min(first.get(key, row.group), row.group)
    order = sorted(
        range(len(rows)),
        key=lambda i: (heaviest[keys[i]], first[keys[i]], keys[i], rows[i].group, i),
    )
    total = sum(prompts.values()) + sum(row.num_read for row in rows)
    share = total / -(-total // micro_tokens) if rows else 0
    batch: list[int] = []
    tokens = 0
    prompt = b""
    for i in order:
        row, key = rows[i], keys[i]
        alone = row.num_read + prompts[key]
        cost = row.num_read if batch and key == prompt else alone
        if batch and (tokens >= share or tokens + cost > micro_tokens):
            yield batch
            batch, tokens, cost = [], 0, alone
        batch.append(i)
        tokens += cost
        prompt = key
    if batch:
        yield batch


def forward_without_grad(policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
    """One pass without gradients."""
    with torch.no_grad():
        return forward(policy, rows, temperature)


def score_tokens(
    policy: Policy,
    rows: Sequence[Row],
    temperature: float,
    micro_tokens: int | MicroBatch,
    forward_pass: ForwardPass = forward_without_grad,
    split_rows: RowSplitter = micro_batches,
) -> TokenScores:
    """What the policy as it is now makes of every response token.

    A `MicroBatch` is made smaller when the pass does not fit in memory.
    """
    if isinstance(micro_tokens, MicroBatch):
        return micro_tokens.run_rows(
            lambda n: score_tokens(policy, rows, temperature, n, forward_pass, split_rows), rows
        )
    if not rows:
        return TokenScores([], [], torch.empty(2, 0), [])
    order: list[int] = []
    seen: list[Tensor] = []
    hidden: dict[int, Tensor] = {}
    for batch in split_rows(rows, micro_tokens):
        found = forward_pass(policy, [rows[i] for i in batch], temperature)
        order += batch
        seen.append(torch.stack((found.logprobs_M, found.entropies_M)))
        hidden |= dict(zip(batch, found.hidden_M.split(found.lengths), strict=True))
    return TokenScores(rows, order, torch.cat(seen, dim=1), [hidden[i] for i in range(len(rows))])


def score_logprobs(
    policy: Policy,
    rows: Sequence[Row],
    temperature: float,
    micro_tokens: int | MicroBatch,
    forward_pass: ForwardPass = forward_without_grad,
) -> list[Floats]:
    """Log-probability of every response token under the policy as it is now, per row [T]."""
    if isinstance(micro_tokens, MicroBatch):
        return micro_tokens.run_rows(
            lambda n: score_logprobs(policy, rows, temperature, n, forward_pass), rows
        )
    if not rows:
        return []
    order: list[int] = []
    seen: list[Tensor] = []  # hidden states are not kept: those of a large batch are large
    for batch in micro_batches(rows, micro_tokens):
        seen.append(forward_pass(policy, [rows[i] for i in batch], temperature).logprobs_M)
        order += batch
    return split_by_row(torch.cat(seen), order, rows)


def split_by_row(values_N: Tensor, order: Sequence[int], rows: Sequence[Row]) -> list[Floats]:
    """Tokens of the rows as they were walked in `order` -> per row [T], in one copy to the host."""
    host_N = values_N.detach().float().cpu().numpy()
    parts: list[Floats] = [host_N] * len(rows)
    end = 0
    for i in order:
        start, end = end, end + rows[i].num_tokens
        parts[i] = host_N[start:end]
    return parts
