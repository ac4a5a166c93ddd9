"""The native sampler: the trainer's own weights, each prompt once, finished rows leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import SampleConfig
from counterpoise.policy.load import Policy
from counterpoise.sample.cache import Cache, Prefill, prefill
from counterpoise.sample.choose import choose
from counterpoise.types import Ints, Response

ROWS_AT_ONCE = 512  # rows decoded together; more only lengthen the queue
CACHE_BYTES = 4 << 30  # keys and values on the CPU; on a GPU half of what is free
LEAVE_SHARE = 8  # the cache is compacted once one row in this many has finished


@dataclass(frozen=True, slots=True)
class Fork:
    """One row to decode: the first `length` tokens of a sequence, then what its seed draws.

    Example:
        Fork(sequence=3, length=61, seed=7, limit=51)
    """

    sequence: int  # index into what was prefilled
    length: int
    seed: int
    limit: int  # new tokens at most
    without: int | None = None  # a token that the first draw leaves out


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: Sequence[Ints],
    seeds_PG: Sequence[Sequence[int]],
    config: SampleConfig,
) -> list[list[Response]]:
    """Responses for every prompt, one for each of its seeds."""
    if not prompts:
        return []
    copies = len(seeds_PG[0])
    if any(len(seeds) != copies for seeds in seeds_PG):
        raise ValueError("every prompt needs the same number of seeds")
    room = config.max_new_tokens
    longest = max(map(len, prompts)) + room
    policy.decoder.reserve(longest)
    at_once = max(1, rows_at_once(policy, longest) // copies)
    responses: list[list[Response]] = []
    for start in range(0, len(prompts), at_once):
        part = prompts[start : start + at_once]
        forks = [
            Fork(p, len(prompt), seed, room)
            for p, prompt in enumerate(part)
            for seed in seeds_PG[start + p]
        ]
        flat = decode(policy, prefill(policy.decoder, part), forks, config)
        responses += [flat[i : i + copies] for i in range(0, len(flat), copies)]
    return responses


def decode(
    policy: Policy, done: Prefill, forks: Sequence[Fork], config: SampleConfig
) -> list[Response]:
    """One response a fork, all decoded together: the caller sees to it that the cache fits."""
    decoder, device = policy.decoder, policy.device
    R, room = len(forks), max(fork.limit for fork in forks)
    firsts_R = torch.tensor([done.firsts[fork.sequence] for fork in forks], device=device)
    positions_R = torch.tensor([fork.length for fork in forks], device=device)
    hidden_R = done.hidden_N[firsts_R + positions_R - 1]
    cache = Cache(done, firsts_R, positions_R, room)

    uniforms = torch.from_numpy(_uniforms([fork.seed for fork in forks], room)).to(device)
    tokens = torch.zeros(R, room, dtype=torch.long, device=device)
    logprobs = torch.zeros(R, room, dtype=torch.float32, device=device)
    ends = torch.tensor(policy.end_tokens, device=device)
    alive = torch.arange(R, device=device)  # rows still in the batch, by their place in the output
    running = torch.ones(R, dtype=torch.bool, device=device)  # of those, the ones not finished
    for t in range(room):
        logits = (hidden_R @ decoder.unembedding.T).float()
        if t == 0:
            _leave_out(logits, forks)
        chosen, chosen_logprobs = choose(
            logits, uniforms[alive, t], config.temperature, config.top_p, config.top_k
        )
        tokens[alive, t] = chosen
        logprobs[alive, t] = chosen_logprobs
        running &= ~torch.isin(chosen, ends)
        left = int(running.sum()) if device.type == "cpu" or t % 16 == 15 else len(running)
        if left == 0 or t == room - 1:
            break
        if len(running) - left >= max(1, len(running) // LEAVE_SHARE):
            rows = running.nonzero().squeeze(1)
            cache.keep(rows)
            alive, positions_R, chosen, running = (
                alive[rows],
                positions_R[rows],
                chosen[rows],
                running[rows],
            )
        cache.advance()
        hidden_R = decoder(chosen, positions_R, cache)
        positions_R = positions_R + 1
    return _responses(policy, forks, tokens, logprobs)


def rows_at_once(policy: Policy, longest: int) -> int:
    """As many rows as their keys and values have room for, ROWS_AT_ONCE at most."""
    budget = CACHE_BYTES
    if policy.device.type == "cuda":
        budget = torch.cuda.mem_get_info(policy.device)[0] // 2
    per_row = longest * cache_bytes_per_token(policy)
    return max(1, min(ROWS_AT_ONCE, budget // per_row))


def cache_bytes_per_token(policy: Policy) -> int:
    decoder = policy.decoder
    numbers = 2 * len(decoder.layers) * decoder.kv_heads * decoder.head_dim
    return numbers * decoder.unembedding.element_size()


def _uniforms(seeds: Sequence[int], count: int) -> np.ndarray:
    """[R, count]; row r is a function of seeds[r] alone."""
    return np.stack([np.random.default_rng(seed).random(count, dtype=np.float32) for seed in seeds])


def _leave_out(logits_RV: Tensor, forks: Sequence[Fork]) -> None:
    """Rows that must not draw a token draw from the others, renormalised."""
    out = [(row, fork.without) for row, fork in enumerate(forks) if fork.without is not None]
    if out:
        rows, tokens = torch.tensor(out, device=logits_RV.device).T
        logits_RV[rows, tokens] = -torch.inf


def _responses(
    policy: Policy, forks: Sequence[Fork], tokens: Tensor, logprobs: Tensor
) -> list[Response]:
    """Cut every row after its first end token, or at its limit; the rest is dropped."""
    responses = []
    drawn = zip(forks, tokens.cpu().numpy(), logprobs.cpu().numpy(), strict=True)
    for fork, row, row_logprobs in drawn:
        found = np.flatnonzero(np.isin(row[: fork.limit], policy.end_tokens))
        length = int(found[0]) + 1 if len(found) else fork.limit
        kept = row[:length].astype(np.int32)
        responses.append(
            Response(
                tokens=kept,
                logprobs=row_logprobs[:length].copy(),
                text=policy.decode(kept),
                finished=bool(len(found)),
            )
        )
    return responses
