"""How much memory the KV cache may take, and how many rows it therefore has room for.

a token    2 (key and value) * layers * key/value heads * head size * bytes of a number, and
           SAMPLE_BYTES of the sampled token itself
a CPU      CPU_CACHE_BYTES
a GPU      half of what is free for this process (model/memory_share.py), counting what the sampler
           itself already holds as free; rows share it by pages of PAGE_TOKENS tokens where it
           cannot hold all of them at full length

Rows beyond these wait until a place is free, so memory is known before anything is sampled. There
is always room for one row, even if it takes more than this; a run is refused at its start only if
one row would take more than half of all memory of the device (`check_cache_fits`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import AnyDecoder, Policy
from counterpoise.model.memory_share import allowed_bytes, free_bytes, memory_share
from counterpoise.sample.kv_cache import Fork
from counterpoise.types import Ints, Prompt

CPU_CACHE_BYTES = 4 << 30
SAMPLE_BYTES = 16  # of a sampled token: its id, its log-probability and the random number
# Tokens of a page of the GPU's response cache: a power of two, and a multiple of the keys that the
# kernel reads at once. A row leaves half a page unused on average.
PAGE_TOKENS = 128
MAX_ROWS_CPU = 512  # a step's time grows with its rows: more rows gain nothing
MAX_ROWS_CUDA = 4096  # on a GPU a step costs nearly the same for few rows as for many
# If rows start at different times, the cache has spare columns beyond the longest row: that row's
# length / SPARE_COLUMNS_DIVISOR, but at least MIN_SPARE_COLUMNS. The cache is moved to the front
# about once in as many passes as there are spare columns.
SPARE_COLUMNS_DIVISOR, MIN_SPARE_COLUMNS = 8, 64


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The size of a `KVCache`.

    Example:
        CachePlan(rows=512, longest_prefix=40, columns=152)
    """

    rows: int
    longest_prefix: int
    columns: int


def plan_cache(decoder: AnyDecoder, forks: Sequence[Fork]) -> CachePlan:
    """Places for all forks if they fit, otherwise for as many rows as do."""
    longest_prefix, longest_row = _longest(forks)
    if len(forks) <= _rows_of_length(decoder, longest_row):
        return CachePlan(len(forks), longest_prefix, longest_row)
    columns = longest_row + max(MIN_SPARE_COLUMNS, longest_row // SPARE_COLUMNS_DIVISOR)
    rows = min(len(forks), _rows_of_length(decoder, columns))
    return CachePlan(rows, longest_prefix, columns)


def rows_that_fit(decoder: AnyDecoder, forks: Sequence[Fork]) -> int:
    """How many of the forks to decode together: as many as fit and still gain speed."""
    return _rows_of_length(decoder, _longest(forks)[1])


def _longest(forks: Sequence[Fork]) -> tuple[int, int]:
    """(tokens of the longest prefix, columns for it and the longest response together)"""
    longest_prefix = max(fork.length for fork in forks)
    return longest_prefix, longest_prefix + max(fork.max_new_tokens for fork in forks)


def _rows_of_length(decoder: AnyDecoder, tokens: int) -> int:
    max_rows = MAX_ROWS_CUDA if decoder.device.type == "cuda" else MAX_ROWS_CPU
    bytes_per_row = tokens * (decoder.kv_bytes_per_token + SAMPLE_BYTES)
    return max(1, min(max_rows, kv_bytes_allowed(decoder, 0) // bytes_per_row))


def kv_bytes_allowed(decoder: AnyDecoder, bytes_held: int) -> int:
    """Bytes that the keys and values of all rows may take; the sampler holds `bytes_held` now."""
    device = decoder.device
    if device.type != "cuda":
        return CPU_CACHE_BYTES
    # Memory that torch has reserved but not allocated is free for us as well.
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free_bytes(device) + unused + bytes_held) // 2


def check_cache_fits(
    policy: Policy, prompts: Sequence[tuple[Prompt, Ints]], config: SampleConfig
) -> None:
    """Refuse responses of which not even one would fit into half of the device's memory."""
    if config.engine != "native":
        return
    kv_bytes = policy.decoder.kv_bytes_per_token
    longest_prompt = max(len(tokens) for _, tokens in prompts)
    bytes_allowed = total_memory(policy.device) // 2
    # A GPU has a spare slot and a spare page (`sample/kv_slots.py`), and the last page of a row may
    # hold a single token.
    on_gpu = policy.device.type == "cuda"
    slots, extra_tokens = (2, 2 * PAGE_TOKENS) if on_gpu else (1, 0)
    prompt_bytes = longest_prompt * (kv_bytes + SAMPLE_BYTES) + extra_tokens * kv_bytes
    token_bytes = kv_bytes + slots * SAMPLE_BYTES
    needed_bytes = prompt_bytes + config.max_new_tokens * token_bytes
    if needed_bytes <= bytes_allowed:
        return
    fitting_tokens = (bytes_allowed - prompt_bytes) // token_bytes
    remedy = (
        f"at most {fitting_tokens:,} fit"
        if fitting_tokens > 0
        else "lower sample.max_prompt_tokens too"
    )
    share = memory_share() if on_gpu else 1.0
    memory, prefix = "the memory", ""
    if share < 1:  # beside other runs; an experiment tries it again with more
        memory, prefix = f"a share of {share:g} of the memory", "out of memory: "
    raise PoiseError(
        f"{prefix}sample.max_new_tokens={config.max_new_tokens}: the keys and values of one "
        f"response would take {needed_bytes / 1e9:,.1f} GB, and half of {memory} is "
        f"{bytes_allowed / 1e9:,.1f}: {remedy}"
    )


def total_memory(device: torch.device) -> int:
    """All memory of the device that this process may take, in bytes."""
    if device.type == "cuda":
        return allowed_bytes(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
