"""Response tokens of a batch as flat tensors: hidden states, log-probabilities, residuals.

`take_snapshot` reads them from the trainer's own forward pass, flat [N] in the order of the rows.
The residual of a token is r = e_o - pi: the one-hot vector of the token minus its distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.model.head import cap_logits, cap_slope
from counterpoise.model.load import Policy
from counterpoise.model.residuals import Residuals, residuals_at_temperature
from counterpoise.model.scoring import forward, micro_batches
from counterpoise.types import Row, number_groups


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Every response token of a batch under one policy, row after row.

    Example:
        tokens = take_snapshot(policy, rows, temperature=1.0, micro_tokens=16384)
        W = policy.decoder.unembedding
        decompose(
            tokens.hidden, W, tokens.tokens, tokens.advantages, tokens.groups,
            softcap=tokens.softcap,
        )
    """

    hidden: Tensor  # [N, D], the input of the unembedding; not divided by the temperature
    tokens: Tensor  # [N]
    logprobs: Tensor  # [N], at the temperature of the snapshot
    entropies: Tensor  # [N], at this temperature too
    advantages: Tensor  # [N], A_i * w_{i,t}
    groups: Tensor  # [N], number of the prompt's group
    rows: Tensor  # [N], index of the token's row
    positions: Tensor  # [N], position in the response
    softcap: float = 0.0  # c of models with logits c tanh(W h / c); 0: no cap

    def __len__(self) -> int:
        return len(self.tokens)


@torch.no_grad()
def take_snapshot(
    policy: Policy, rows: Sequence[Row], temperature: float = 1.0, micro_tokens: int = 16384
) -> Snapshot:
    """Run the policy over `rows` and return every response token, in the order of `rows`."""
    check_rows(rows)
    # Micro-batches take rows in another order (by prompt and length), so results go back to their
    # row's index before they are concatenated.
    hidden, logprobs, entropies = ([torch.empty(0)] * len(rows) for _ in range(3))
    for batch in micro_batches(rows, micro_tokens):
        result = forward(policy, [rows[index] for index in batch], temperature)
        for index, row_hidden, row_logprobs, row_entropies in zip(
            batch,
            result.hidden_M.split(result.lengths),
            result.logprobs_M.split(result.lengths),
            result.entropies_M.split(result.lengths),
            strict=True,
        ):
            hidden[index] = row_hidden
            logprobs[index] = row_logprobs
            entropies[index] = row_entropies
    device = policy.device
    groups_R = torch.tensor(number_groups(rows)[0])
    lengths_R = torch.tensor([row.num_tokens for row in rows])
    responses = [row.content.response_tokens for row in rows]
    return Snapshot(
        hidden=torch.cat(hidden),
        tokens=torch.from_numpy(np.concatenate(responses).astype(np.int64)).to(device),
        logprobs=torch.cat(logprobs),
        entropies=torch.cat(entropies),
        advantages=torch.from_numpy(np.concatenate([row.advantages_T for row in rows])).to(device),
        groups=groups_R.repeat_interleave(lengths_R).to(device),
        rows=torch.arange(len(rows)).repeat_interleave(lengths_R).to(device),
        positions=torch.cat([torch.arange(length) for length in lengths_R.tolist()]).to(device),
        softcap=policy.decoder.softcap,
    )


def policy_residuals(
    policy: Policy, hidden: Tensor, tokens: Tensor, temperature: float
) -> Residuals:
    """Residuals of tokens at the temperature of a step."""
    decoder = policy.decoder
    return residuals_at_temperature(
        hidden, decoder.unembedding.detach(), tokens, temperature, decoder.softcap
    )


def token_residuals(
    hidden_N: Tensor, unembedding_V: Tensor, tokens_N: Tensor, softcap: float = 0.0
) -> Tensor:
    """r = e_o - pi for every token: [N, V]. The caller passes chunks, because [N, V] is large.

    With a soft cap every entry has the cap's slope as a factor, as in `Residuals`.
    """
    logits = cap_logits(hidden_N @ unembedding_V.T, softcap)
    R = torch.softmax(logits, dim=-1).neg_()
    R[torch.arange(len(tokens_N), device=R.device), tokens_N] += 1
    return R.mul_(cap_slope(logits, softcap)) if softcap else R


def check_rows(rows: Sequence[Row]) -> None:
    """Raise an error for rows that cannot be measured: none, empty, or with nan advantages."""
    if not rows:
        raise PoiseError("the batch has no rows: there is nothing to measure")
    for row in rows:
        if row.num_tokens == 0:
            raise PoiseError(
                f"rollout {row.index} of {row.group} is empty: a response needs at least one token"
            )
        if not np.isfinite(row.advantages_T).all():
            raise PoiseError(f"rollout {row.index} of {row.group}: its advantages are not finite")


def check_tokens(
    hidden: Tensor, unembedding: Tensor, tokens: Tensor, advantages: Tensor, groups: Tensor
) -> None:
    """Raise an error where the inputs of `decompose` do not fit together."""
    arguments = {
        "hidden": (hidden, "[N, D]"),
        "unembedding": (unembedding, "[V, D]"),
        "tokens": (tokens, "[N]"),
        "advantages": (advantages, "[N]"),
        "groups": (groups, "[N]"),
    }
    for name, (values, shape) in arguments.items():
        if not isinstance(values, Tensor):
            raise PoiseError(f"{name} must be a torch tensor {shape}, not {type(values).__name__}")
        if values.ndim != 1 + shape.count(","):
            raise PoiseError(f"{name} has the shape {list(values.shape)}, not {shape}")
    N = len(tokens)
    if N == 0:
        raise PoiseError("the batch has no tokens: there is nothing to measure")
    if not len(hidden) == len(advantages) == len(groups) == N:
        raise PoiseError(
            f"{len(hidden)} hidden states, {N} tokens, {len(advantages)} advantages and "
            f"{len(groups)} groups: every token needs one of each"
        )
    if hidden.shape[1] != unembedding.shape[1]:
        raise PoiseError(
            f"hidden states of size {hidden.shape[1]} do not fit an unembedding of "
            f"{unembedding.shape[1]}: do they come from the same model?"
        )
    if (lowest_id := int(tokens.min())) < 0:
        raise PoiseError(
            f"{lowest_id} is not the id of a token: leave out padding and masked tokens first"
        )
    if (highest_id := int(tokens.max())) >= len(unembedding):
        raise PoiseError(
            f"token {highest_id} is outside a vocabulary of {len(unembedding)}: "
            "the rollouts come from another tokenizer"
        )
    if not bool(torch.isfinite(advantages).all()):
        raise PoiseError("advantages are not finite: check the credit method that computed them")
