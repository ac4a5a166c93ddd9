"""The native sampler: the trainer's own weights, each prompt once, finished rows leave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import SampleConfig
from counterpoise.policy.attention import PackedAttention
from counterpoise.policy.load import Policy
from counterpoise.policy.packing import pack_prompts
from counterpoise.sample.cache import Cache, Recorded, positions_of
from counterpoise.sample.choose import choose
from counterpoise.types import Ints, Response

ROWS_AT_ONCE = 512  # rows decoded together; more only lengthen the queue
CACHE_BYTES = 4 << 30  # keys and values on the CPU; on a GPU half of what is free
LEAVE_SHARE = 8  # the cache is compacted once one row in this many has finished


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
    longest = max(map(len, prompts)) + config.max_new_tokens
    policy.decoder.reserve(longest)
    at_once = max(1, rows_at_once(policy, longest) // copies)
    responses: list[list[Response]] = []
    for start in range(0, len(prompts), at_once):
        part = slice(start, start + at_once)
        seeds = [seed for seeds in seeds_PG[part] for seed in seeds]
        flat = _decode(policy, prompts[part], copies, seeds, config)
        responses += [flat[i : i + copies] for i in range(0, len(flat), copies)]
    return responses


def _decode(
    policy: Policy,
    prompts: Sequence[Ints],
    copies: int,
    seeds: Sequence[int],
    config: SampleConfig,
) -> list[Response]:
    decoder, device, room = policy.decoder, policy.device, config.max_new_tokens
    packing = pack_prompts(prompts, device)
    recorded = Recorded(PackedAttention(packing))
    hidden_N = decoder(packing.tokens_N, packing.positions_N, recorded)
    last = torch.tensor([start + length - 1 for start, length in packing.prompts], device=device)
    hidden_R = hidden_N[last].repeat_interleave(copies, dim=0)
    cache = Cache(decoder, packing, recorded, copies, room)
    positions_R = positions_of(packing, copies)

    R = len(seeds)
    uniforms = torch.from_numpy(_uniforms(seeds, room)).to(device)
    tokens = torch.zeros(R, room, dtype=torch.long, device=device)
    logprobs = torch.zeros(R, room, dtype=torch.float32, device=device)
    ends = torch.tensor(policy.end_tokens, device=device)
    alive = torch.arange(R, device=device)  # rows still in the batch, by their place in the output
    running = torch.ones(R, dtype=torch.bool, device=device)  # of those, the ones not finished
    for t in range(room):
        logits = (hidden_R @ decoder.unembedding.T).float()
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
    return _responses(policy, tokens, logprobs)


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


def _responses(policy: Policy, tokens: Tensor, logprobs: Tensor) -> list[Response]:
    """Cut every row after its first end token; what was decoded beyond it is dropped."""
    responses = []
    for row, row_logprobs in zip(tokens.cpu().numpy(), logprobs.cpu().numpy(), strict=True):
        found = np.flatnonzero(np.isin(row, policy.end_tokens))
        length = int(found[0]) + 1 if len(found) else len(row)
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
