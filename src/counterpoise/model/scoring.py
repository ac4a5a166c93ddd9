"""Compute log-probabilities of response tokens with the trainer's forward, in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from counterpoise.model.attention import PackedAttention
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.head import token_logprobs
from counterpoise.model.load import Policy
from counterpoise.model.packing import Packing, pack, prompt_key
from counterpoise.types import Floats, Row


@dataclass(frozen=True, slots=True, eq=False)
class ForwardOutputs:
    """The outputs of one micro-batch. M: response tokens, flat in the order of the rows."""

    logprobs_M: Tensor
    entropies_M: Tensor
    hidden_M: Tensor  # [M, D], the input of the unembedding
    lengths: tuple[int, ...]


ForwardPass = Callable[[Policy, Sequence[Row], float], ForwardOutputs]  # without gradients
RowSplitter = Callable[[Sequence[Row], int], Iterator[list[int]]]  # see `micro_batches`


@dataclass(frozen=True, eq=False)
class TokenScores:
    """The scores of all response tokens, on the policy's device until a property copies them."""

    rows: Sequence[Row]
    order: Sequence[int]  # row indices, in the order in which `values_2N` holds the rows
    values_2N: Tensor  # log-probabilities and entropies of all tokens
    hidden: list[Tensor]  # per row [T, D]

    @cached_property
    def logprobs(self) -> list[Floats]:
        """Log-probabilities, per row [T]."""
        return split_by_row(self.values_2N[0], self.order, self.rows)

    @cached_property
    def entropies(self) -> list[Floats]:
        """Entropies, per row [T]."""
        return split_by_row(self.values_2N[1], self.order, self.rows)


def forward(
    policy: Policy, rows: Sequence[Row], temperature: float, *, checkpointing: bool = False
) -> ForwardOutputs:
    """One forward pass; with `checkpointing` the backward pass recomputes each layer."""
    packing = pack_rows(policy, rows)
    attend = PackedAttention(packing)
    return forward_packed(policy, packing, attend, temperature, checkpointing=checkpointing)


def pack_rows(policy: Policy, rows: Sequence[Row]) -> Packing:
    """Pack the rows on the policy's device and reserve their positions."""
    contents = [row.content for row in rows]
    packing = pack(
        [content.prompt_tokens for content in contents],
        [content.response_tokens for content in contents],
        policy.device,
        [content.observations for content in contents],
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
    train_entropy: bool = False,
) -> ForwardOutputs:
    """The pass itself. It reads only tensors and weights, so a CUDA graph can capture it."""
    decoder = policy.decoder
    hidden_M = _predictor_states(policy, packing, attend, checkpointing)
    logprobs, entropies = token_logprobs(
        hidden_M,
        decoder.unembedding,
        packing.targets_M,
        temperature,
        softcap=decoder.softcap,
        train_entropy=train_entropy,
    )
    return ForwardOutputs(logprobs, entropies, hidden_M, packing.lengths)


def _predictor_states(
    policy: Policy, packing: Packing, attend: PackedAttention, checkpointing: bool = False
) -> Tensor:
    """Hidden states [M, D] that predict the response tokens."""
    hidden_N = policy.decoder(
        packing.tokens_N, packing.positions_N, attend, checkpoint=checkpointing
    )
    return hidden_N.index_select(0, packing.predictors_M)


def hidden_states(policy: Policy, rows: Sequence[Row]) -> Tensor:
    """The states [M, D] that predict the response tokens: no gradients, no unembedding."""
    with torch.no_grad():
        packing = pack_rows(policy, rows)
        return _predictor_states(policy, packing, PackedAttention(packing))


def micro_batches(rows: Sequence[Row], micro_tokens: int) -> Iterator[list[int]]:
    """Split rows into passes; yields the row indices of each.

    Rows with the same prompt are adjacent, even those of different groups: a pass computes the
    prompt once, and flash attention needs its responses together. Prompts are ordered by their
    longest response. There are about as few passes as the tokens need, all of about equal size: a
    short last one would leave a GPU idle. A row longer than `micro_tokens` gets a pass of its own.
    """
    prompt_keys = [prompt_key(row.content.prompt_tokens) for row in rows]
    prompt_lengths = {
        row_key: len(row.content.prompt_tokens)
        for row_key, row in zip(prompt_keys, rows, strict=True)
    }
    # Sorting by these keys keeps rows of a prompt together, and makes the order of prompts and
    # groups independent of how the rows were listed; rows of one group keep their order.
    longest_read, first_group = dict.fromkeys(prompt_keys, 0), dict[bytes, str]()
    for row_key, row in zip(prompt_keys, rows, strict=True):
        longest_read[row_key] = max(longest_read[row_key], row.num_tokens_read)
        first_group[row_key] = min(first_group.get(row_key, row.group), row.group)
    row_order = sorted(
        range(len(rows)),
        key=lambda i: (
            longest_read[prompt_keys[i]],
            first_group[prompt_keys[i]],
            prompt_keys[i],
            rows[i].group,
            i,
        ),
    )
    total_tokens = sum(prompt_lengths.values()) + sum(row.num_tokens_read for row in rows)
    # As many passes as if rows could be split, each with about an equal share of the tokens.
    target_tokens = total_tokens / -(-total_tokens // micro_tokens) if rows else 0
    batch: list[int] = []
    batch_tokens = 0
    previous_key = b""
    for i in row_order:
        row, row_key = rows[i], prompt_keys[i]
        row_cost_alone = row.num_tokens_read + prompt_lengths[row_key]
        row_cost = row.num_tokens_read if batch and row_key == previous_key else row_cost_alone
        if batch and (batch_tokens >= target_tokens or batch_tokens + row_cost > micro_tokens):
            yield batch
            batch, batch_tokens, row_cost = [], 0, row_cost_alone
        batch.append(i)
        batch_tokens += row_cost
        previous_key = row_key
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
    micro_tokens: int | FittedSize,
    forward_pass: ForwardPass = forward_without_grad,
    split_rows: RowSplitter = micro_batches,
) -> TokenScores:
    """Log-probabilities, entropies and hidden states of every response token, no gradients.

    A `FittedSize` shrinks if a pass does not fit in memory.
    """
    if isinstance(micro_tokens, FittedSize):
        return micro_tokens.run_rows(
            lambda tokens_per_pass: score_tokens(
                policy, rows, temperature, tokens_per_pass, forward_pass, split_rows
            ),
            rows,
        )
    if not rows:
        return TokenScores([], [], torch.empty(2, 0), [])
    row_order: list[int] = []
    pass_scores: list[Tensor] = []
    hidden: dict[int, Tensor] = {}
    for batch in split_rows(rows, micro_tokens):
        outputs = forward_pass(policy, [rows[i] for i in batch], temperature)
        row_order += batch
        pass_scores.append(torch.stack((outputs.logprobs_M, outputs.entropies_M)))
        hidden |= dict(zip(batch, outputs.hidden_M.split(outputs.lengths), strict=True))
    return TokenScores(
        rows, row_order, torch.cat(pass_scores, dim=1), [hidden[i] for i in range(len(rows))]
    )


def score_logprobs(
    policy: Policy,
    rows: Sequence[Row],
    temperature: float,
    micro_tokens: int | FittedSize,
    forward_pass: ForwardPass = forward_without_grad,
) -> list[Floats]:
    """Log-probability of every response token under the current policy, per row [T]."""
    if isinstance(micro_tokens, FittedSize):
        return micro_tokens.run_rows(
            lambda tokens_per_pass: score_logprobs(
                policy, rows, temperature, tokens_per_pass, forward_pass
            ),
            rows,
        )
    if not rows:
        return []
    row_order: list[int] = []
    # Hidden states are dropped: those of a large batch would not fit in memory.
    pass_logprobs: list[Tensor] = []
    for batch in micro_batches(rows, micro_tokens):
        pass_logprobs.append(forward_pass(policy, [rows[i] for i in batch], temperature).logprobs_M)
        row_order += batch
    return split_by_row(torch.cat(pass_logprobs), row_order, rows)


def split_by_row(values_N: Tensor, order: Sequence[int], rows: Sequence[Row]) -> list[Floats]:
    """Split the values of rows in `order` into rows [T], with a single copy to the host."""
    host_values_N = values_N.detach().float().cpu().numpy()
    values_R: list[Floats] = [host_values_N] * len(rows)
    row_end = 0
    for i in order:
        row_start, row_end = row_end, row_end + rows[i].num_tokens
        values_R[i] = host_values_N[row_start:row_end]
    return values_R
