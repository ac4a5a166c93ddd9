"""The native sampler: the trainer's own weights, each prompt once, finished rows leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.model.load import Policy
from counterpoise.sample.choose_token import choose_tokens
from counterpoise.sample.decode_graphs import decode_rows, kv_bytes_held
from counterpoise.sample.kv_budget import kv_bytes_allowed, kv_bytes_per_token
from counterpoise.sample.kv_cache import KVCache, Prefill, prefill
from counterpoise.types import Ints, Response

MAX_ROWS_CPU = 512  # rows decoded together on the CPU; more only lengthen the queue
MAX_ROWS_CUDA = 4096  # where a step costs nearly the same for few rows as for many
COMPACTION_DIVISOR = 8  # the cache is compacted once one row in this many has finished


@dataclass(frozen=True, slots=True)
class Fork:
    """One row to decode: the first `length` tokens of a sequence, then what its seed draws.

    Example:
        Fork(sequence=3, length=61, seed=7, limit=51)
    """

    sequence: int  # index into what was prefilled
    length: int
    seed: int
    max_new_tokens: int  # new tokens at most
    excluded_token: int | None = None  # a token that the first draw leaves out


class NativeSampler:
    """`sample` as a `Sampler`: nothing to start, nothing to close."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        pass

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Ints],
        seeds_PG: Sequence[Sequence[int]],
        config: SampleConfig,
    ) -> list[list[Response]]:
        return sample(policy, prompts, seeds_PG, config)

    def close(self) -> None:
        pass


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
    at_once = max(1, max_rows_at_once(policy, longest) // copies)
    responses: list[list[Response]] = []
    for start in range(0, len(prompts), at_once):
        part = prompts[start : start + at_once]
        forks = [
            Fork(p, len(prompt), seed, room)
            for p, prompt in enumerate(part)
            for seed in seeds_PG[start + p]
        ]
        flat = decode_forks(policy, prefill(policy.decoder, part), forks, config)
        responses += [flat[i : i + copies] for i in range(0, len(flat), copies)]
    return responses


def decode_forks(
    policy: Policy, done: Prefill, forks: Sequence[Fork], config: SampleConfig
) -> list[Response]:
    """One response a fork, all decoded together: the caller sees to it that the cache fits."""
    device, room = policy.device, max(fork.max_new_tokens for fork in forks)
    firsts_R = torch.tensor([done.starts[fork.sequence] for fork in forks], device=device)
    lengths_R = torch.tensor([fork.length for fork in forks], device=device)
    logits = done.hidden_N[firsts_R + lengths_R - 1] @ policy.decoder.unembedding.T
    _leave_out(logits, forks)
    uniforms = torch.from_numpy(_uniforms([fork.seed for fork in forks], room)).to(device)
    if device.type == "cuda":
        tokens, logprobs = decode_rows(
            policy, done, [fork.sequence for fork in forks], [fork.length for fork in forks],
            [fork.max_new_tokens for fork in forks], uniforms, logits, config,
        )  # fmt: skip
    else:
        cache = KVCache(done, firsts_R, lengths_R, room)
        tokens, logprobs = _decode(policy, cache, lengths_R, uniforms, logits, config)
    return _responses(policy, forks, tokens, logprobs)


def _decode(
    policy: Policy, cache: KVCache, positions_R: Tensor, uniforms: Tensor, logits: Tensor,
    config: SampleConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One token a row and pass; rows leave once enough of them have finished."""
    decoder, device = policy.decoder, policy.device
    R, room = uniforms.shape
    tokens = torch.zeros(R, room, dtype=torch.long, device=device)
    logprobs = torch.zeros(R, room, dtype=torch.float32, device=device)
    ends = torch.tensor(policy.end_tokens, device=device)
    alive = torch.arange(R, device=device)  # rows still in the batch, by their place in the output
    running = torch.ones(R, dtype=torch.bool, device=device)  # of those, the ones not finished
    for t in range(room):
        chosen, chosen_logprobs = choose_tokens(
            logits.float(), uniforms[alive, t], config.temperature, config.top_p, config.top_k
        )
        tokens[alive, t] = chosen
        logprobs[alive, t] = chosen_logprobs
        running &= ~torch.isin(chosen, ends)
        left = int(running.sum())
        if left == 0 or t == room - 1:
            break
        if len(running) - left >= max(1, len(running) // COMPACTION_DIVISOR):
            rows = running.nonzero().squeeze(1)
            cache.keep_rows(rows)
            alive, positions_R, chosen, running = (
                alive[rows],
                positions_R[rows],
                chosen[rows],
                running[rows],
            )
        cache.advance()
        logits = decoder(chosen, positions_R, cache) @ decoder.unembedding.T
        positions_R = positions_R + 1
    return tokens, logprobs


def max_rows_at_once(policy: Policy, longest: int) -> int:
    """As many rows as their keys and values have room for, and no more than are of use."""
    decoder = policy.decoder
    most = MAX_ROWS_CUDA if policy.device.type == "cuda" else MAX_ROWS_CPU
    per_row = longest * kv_bytes_per_token(decoder)
    return max(1, min(most, kv_bytes_allowed(decoder, kv_bytes_held(decoder)) // per_row))


def _uniforms(seeds: Sequence[int], count: int) -> np.ndarray:
    """[R, count]; row r is a function of seeds[r] alone."""
    return np.stack([np.random.default_rng(seed).random(count, dtype=np.float32) for seed in seeds])


def _leave_out(logits_RV: Tensor, forks: Sequence[Fork]) -> None:
    """Rows that must not draw a token draw from the others, renormalised."""
    out = [
        (row, fork.excluded_token)
        for row, fork in enumerate(forks)
        if fork.excluded_token is not None
    ]
    if out:
        rows, tokens = torch.tensor(out, device=logits_RV.device).T
        logits_RV[rows, tokens] = -torch.inf


def _responses(
    policy: Policy, forks: Sequence[Fork], tokens: Tensor, logprobs: Tensor
) -> list[Response]:
    """Cut every row after its first end token, or at its limit; the rest is dropped."""
    limits = np.array([fork.max_new_tokens for fork in forks])
    drawn, drawn_logprobs = tokens.cpu().numpy(), logprobs.cpu().numpy()
    within = np.arange(drawn.shape[1])[None] < limits[:, None]
    ended = np.isin(drawn, policy.end_tokens) & within
    finished = np.asarray(ended.any(axis=1))
    lengths = np.where(finished, ended.argmax(axis=1) + 1, limits)
    kept = [row[:n].astype(np.int32) for row, n in zip(drawn, lengths, strict=True)]
    parts = zip(kept, drawn_logprobs, policy.decode_rows(kept), finished, strict=True)
    return [Response(row, lp[: len(row)].copy(), text, bool(done)) for row, lp, text, done in parts]
