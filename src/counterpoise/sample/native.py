"""The native sampler: decodes with the trainer's own weights and prefills each prompt only once.

There may be more rows than the KV cache has places: a row that finishes makes room for the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.general import GeneralDecoder
from counterpoise.model.load import Policy
from counterpoise.model.row_cache import RowCache, rows_may_be_padded
from counterpoise.sample.decode_cached import CachedRows, decode_once, decode_queue, head_logits
from counterpoise.sample.decode_slots import decode_in_slots
from counterpoise.sample.decode_tile import choose_parts, choose_tile
from counterpoise.sample.fork_queue import DecodedRows, ForkQueue
from counterpoise.sample.kv_budget import plan_cache, rows_that_fit
from counterpoise.sample.kv_cache import Fork, KVCache
from counterpoise.types import Ints, Response


class NativeSampler:
    """The function `sample` as a `Sampler`; there is nothing to start or to close."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        check_requests(policy)

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


def check_requests(policy: Policy) -> None:
    """Raise an error if the environment asks for a tile or parts that decode attention cannot take.

    Only a GPU needs them, but a wrong request is refused on any machine, before a run begins.
    """
    decoder = policy.decoder
    if not isinstance(decoder, GeneralDecoder):
        choose_tile(decoder.head_dim, decoder.heads // decoder.kv_heads)
        choose_parts(num_programs=1, max_new_tokens=1)


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
    group_size = len(seeds_PG[0])
    if any(len(seeds) != group_size for seeds in seeds_PG):
        raise ValueError("every prompt needs the same number of seeds")
    forks = [
        Fork(prompt_index, len(prompt), seed, config.max_new_tokens)
        for prompt_index, (prompt, seeds) in enumerate(zip(prompts, seeds_PG, strict=True))
        for seed in seeds
    ]
    responses = decode_forks(policy, prompts, forks, config)
    return [responses[i : i + group_size] for i in range(0, len(responses), group_size)]


@torch.no_grad()
def decode_forks(
    policy: Policy, sequences: Sequence[Ints], forks: Sequence[Fork], config: SampleConfig
) -> list[Response]:
    """One response per fork, however many there are: those beyond the cache wait for a place."""
    if not forks:
        return []
    if not all(map(len, sequences)):
        raise ValueError("a prompt without tokens cannot be continued")
    policy.as_tokens(np.concatenate(sequences))  # raises where the model has no such token
    longest_row = max(fork.length for fork in forks) + max(fork.max_new_tokens for fork in forks)
    decoder = policy.decoder
    decoder.reserve(max(longest_row, *map(len, sequences)))
    if isinstance(decoder, GeneralDecoder):
        decoded = _decode_general(policy, sequences, forks, config)
    elif policy.device.type == "cuda":
        decoded = decode_in_slots(policy, ForkQueue(decoder, sequences, forks), config)
    else:
        plan = plan_cache(decoder, forks)
        cache = KVCache(decoder, plan.rows, plan.longest_prefix, plan.columns)
        queue = ForkQueue(decoder, sequences, forks)
        decoded = decode_queue(policy, cache, queue, config).decoded
    return _responses(policy, decoded, len(forks))


def _decode_general(
    policy: Policy, sequences: Sequence[Ints], forks: Sequence[Fork], config: SampleConfig
) -> DecodedRows:
    """`decode_forks` on the general path, which reads every fork's prefix into a `RowCache`.

    A finished row's place in transformers' cache cannot be given to a waiting one, so rows beyond
    the cache are decoded in batches, one after the other.
    """
    decoder = policy.decoder
    assert isinstance(decoder, GeneralDecoder)
    # All forks together if padding does not change the states; otherwise those of equal length.
    may_be_padded = rows_may_be_padded(decoder)
    batches: dict[int, list[int]] = {}
    for index, fork in enumerate(forks):
        batches.setdefault(0 if may_be_padded else fork.length, []).append(index)
    max_rows = rows_that_fit(decoder, forks)
    decoded: DecodedRows = {}
    for indices in batches.values():
        for first_row in range(0, len(indices), max_rows):
            batch_indices = indices[first_row : first_row + max_rows]
            batch = [forks[index] for index in batch_indices]
            cache = RowCache(decoder, [sequences[fork.sequence][: fork.length] for fork in batch])
            limit = max(fork.max_new_tokens for fork in batch)
            rows = CachedRows(policy, config, len(batch), limit)
            logits = head_logits(decoder, cache.last_hidden_R)
            rows.start_forks(rows.slots, batch_indices, batch, logits)
            while decode_once(rows, cache):
                pass
            decoded |= rows.decoded
    return decoded


def _responses(policy: Policy, decoded: DecodedRows, num_forks: int) -> list[Response]:
    if not all(np.isfinite(logprobs).all() for _, logprobs in decoded.values()):
        raise PoiseError(
            "the model's scores of the next token are not finite: a setting in its config.json is "
            "out of range, or training made its weights overflow (try a lower update.lr)"
        )
    tokens_R = [decoded[index][0] for index in range(num_forks)]
    return [
        Response(tokens, decoded[index][1], text, int(tokens[-1]) in policy.end_tokens)
        for index, (tokens, text) in enumerate(
            zip(tokens_R, policy.decode_rows(tokens_R), strict=True)
        )
    ]
