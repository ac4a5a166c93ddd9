"""The native sampler: decodes with the trainer's own weights and prefills each prompt only once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.model.decoder import Decoder
from counterpoise.model.head import cap_logits
from counterpoise.model.load import AnyDecoder, Policy
from counterpoise.model.row_cache import RowCache, rows_may_be_padded
from counterpoise.sample.choose_token import choose_tokens
from counterpoise.sample.decode_graphs import decode_rows, kv_bytes_held
from counterpoise.sample.kv_budget import kv_bytes_allowed
from counterpoise.sample.kv_cache import Fork, KVCache, Prefill, UnreadSequences, prefill
from counterpoise.types import Ints, Response

MAX_ROWS_CPU = 512  # a step's time grows with its rows: more rows gain nothing
MAX_ROWS_CUDA = 4096  # on a GPU a step costs nearly the same for few rows as for many
COMPACTION_DIVISOR = 8  # the cache is compacted once one row in this many has finished


class NativeSampler:
    """The function `sample` as a `Sampler`; there is nothing to start or to close."""

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
    group_size = len(seeds_PG[0])
    if any(len(seeds) != group_size for seeds in seeds_PG):
        raise ValueError("every prompt needs the same number of seeds")
    longest = max(map(len, prompts)) + config.max_new_tokens
    policy.decoder.reserve(longest)
    prompts_at_once = max(1, max_rows_at_once(policy, longest) // group_size)
    responses: list[list[Response]] = []
    for first_prompt in range(0, len(prompts), prompts_at_once):
        batch = prompts[first_prompt : first_prompt + prompts_at_once]
        forks = [
            Fork(prompt_index, len(prompt), seed, config.max_new_tokens)
            for prompt_index, prompt in enumerate(batch)
            for seed in seeds_PG[first_prompt + prompt_index]
        ]
        flat_responses = decode_forks(policy, prefill(policy.decoder, batch), forks, config)
        responses += [
            flat_responses[i : i + group_size] for i in range(0, len(flat_responses), group_size)
        ]
    return responses


def decode_forks(
    policy: Policy,
    prefilled: Prefill | UnreadSequences,
    forks: Sequence[Fork],
    config: SampleConfig,
) -> list[Response]:
    """One response per fork, all decoded together; the caller makes sure that the cache fits."""
    if isinstance(prefilled, UnreadSequences):
        return _decode_unread(policy, prefilled, forks, config)
    device, max_new_tokens = policy.device, max(fork.max_new_tokens for fork in forks)
    starts_R = torch.tensor([prefilled.starts[fork.sequence] for fork in forks], device=device)
    lengths_R = torch.tensor([fork.length for fork in forks], device=device)
    # The prefill has already computed the state that predicts each row's first new token.
    logits = _logits(policy.decoder, prefilled.hidden_N[starts_R + lengths_R - 1])
    _exclude_tokens(logits, forks)
    uniforms = _uniforms(forks, max_new_tokens, device)
    if device.type == "cuda":
        tokens, logprobs = decode_rows(policy, prefilled, forks, uniforms, logits, config)
    else:
        cache = KVCache(prefilled, starts_R, lengths_R, max_new_tokens)
        tokens, logprobs = _decode(policy, cache, lengths_R, uniforms, logits, config)
    return _responses(policy, forks, tokens, logprobs)


def _decode_unread(
    policy: Policy, unread: UnreadSequences, forks: Sequence[Fork], config: SampleConfig
) -> list[Response]:
    """`decode_forks` on the general path, which reads every fork's prefix into a `RowCache`."""
    decoder = unread.decoder
    # All forks together if padding does not change the states; otherwise those of equal length.
    may_be_padded = rows_may_be_padded(decoder)
    batches: dict[int, list[int]] = {}
    for index, fork in enumerate(forks):
        batches.setdefault(0 if may_be_padded else fork.length, []).append(index)
    responses: dict[int, Response] = {}
    for indices in batches.values():
        batch = [forks[index] for index in indices]
        cache = RowCache(
            decoder, [unread.sequences[fork.sequence][: fork.length] for fork in batch]
        )
        logits = _logits(decoder, cache.last_hidden_R)
        _exclude_tokens(logits, batch)
        uniforms = _uniforms(batch, max(fork.max_new_tokens for fork in batch), policy.device)
        positions_R = torch.tensor([fork.length for fork in batch], device=policy.device)
        tokens, logprobs = _decode(policy, cache, positions_R, uniforms, logits, config)
        responses |= zip(indices, _responses(policy, batch, tokens, logprobs), strict=True)
    return [responses[index] for index in range(len(forks))]


def _logits(decoder: AnyDecoder, hidden_RD: Tensor) -> Tensor:
    """The model's logits [R, V], with its soft cap if it has one."""
    return cap_logits(hidden_RD @ decoder.unembedding.T, decoder.softcap)


def _decode(
    policy: Policy,
    cache: KVCache | RowCache,
    positions_R: Tensor,
    uniforms: Tensor,
    logits: Tensor,
    config: SampleConfig,
) -> tuple[Tensor, Tensor]:
    """Decode one token per row and pass, removing finished rows from time to time."""
    decoder, device = policy.decoder, policy.device
    R, max_new_tokens = uniforms.shape
    tokens = torch.zeros(R, max_new_tokens, dtype=torch.long, device=device)
    logprobs = torch.zeros(R, max_new_tokens, dtype=torch.float32, device=device)
    end_tokens = torch.tensor(policy.end_tokens, device=device)
    # `batch_rows`: rows still in the batch, by their place in the output. `running`: which of them
    # have not finished; finished rows are decoded along until the next compaction.
    batch_rows = torch.arange(R, device=device)
    running = torch.ones(R, dtype=torch.bool, device=device)
    for t in range(max_new_tokens):
        new_tokens, new_logprobs = choose_tokens(
            logits.float(), uniforms[batch_rows, t], config.temperature, config.top_p, config.top_k
        )
        tokens[batch_rows, t] = new_tokens
        logprobs[batch_rows, t] = new_logprobs
        running &= ~torch.isin(new_tokens, end_tokens)
        num_running = int(running.sum())
        if num_running == 0 or t == max_new_tokens - 1:
            break
        # Compaction copies the cache, so it waits until a fair share of the rows has finished.
        if len(running) - num_running >= max(1, len(running) // COMPACTION_DIVISOR):
            rows = running.nonzero().squeeze(1)
            cache.keep_rows(rows)
            batch_rows, positions_R = batch_rows[rows], positions_R[rows]
            new_tokens, running = new_tokens[rows], running[rows]
        cache.advance()
        if isinstance(cache, RowCache):
            hidden_R = cache.read_next(new_tokens, positions_R)
        else:
            assert isinstance(decoder, Decoder)
            hidden_R = decoder(new_tokens, positions_R, cache)
        logits = _logits(decoder, hidden_R)
        positions_R = positions_R + 1
    return tokens, logprobs


def max_rows_at_once(policy: Policy, longest: int) -> int:
    """How many rows of `longest` tokens to decode together: as many as fit and still gain speed."""
    decoder = policy.decoder
    max_rows = MAX_ROWS_CUDA if policy.device.type == "cuda" else MAX_ROWS_CPU
    bytes_per_row = longest * decoder.kv_bytes_per_token
    bytes_allowed = kv_bytes_allowed(decoder, kv_bytes_held(decoder))
    return max(1, min(max_rows, bytes_allowed // bytes_per_row))


def _uniforms(forks: Sequence[Fork], count: int, device: torch.device) -> Tensor:
    """Uniform random numbers [R, count]; row r depends only on the seed of fork r."""
    draws = [np.random.default_rng(fork.seed).random(count, dtype=np.float32) for fork in forks]
    return torch.from_numpy(np.stack(draws)).to(device)


def _exclude_tokens(logits_RV: Tensor, forks: Sequence[Fork]) -> None:
    """Give each fork's excluded token probability 0, in place."""
    excluded = [
        (row, fork.excluded_token)
        for row, fork in enumerate(forks)
        if fork.excluded_token is not None
    ]
    if excluded:
        rows, tokens = torch.tensor(excluded, device=logits_RV.device).T
        logits_RV[rows, tokens] = -torch.inf


def _responses(
    policy: Policy, forks: Sequence[Fork], tokens: Tensor, logprobs: Tensor
) -> list[Response]:
    """Cut every row after its first end token, or at its limit."""
    limits = np.array([fork.max_new_tokens for fork in forks])
    tokens_RT, logprobs_RT = tokens.cpu().numpy(), logprobs.cpu().numpy()
    within_limit = np.arange(tokens_RT.shape[1])[None] < limits[:, None]
    is_end = np.isin(tokens_RT, policy.end_tokens) & within_limit
    finished = np.asarray(is_end.any(axis=1))
    lengths = np.where(finished, is_end.argmax(axis=1) + 1, limits)
    responses = [
        row[:length].astype(np.int32) for row, length in zip(tokens_RT, lengths, strict=True)
    ]
    return [
        Response(response, row[: len(response)].copy(), text, bool(is_finished))
        for response, row, text, is_finished in zip(
            responses, logprobs_RT, policy.decode_rows(responses), finished, strict=True
        )
    ]
