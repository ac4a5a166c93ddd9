"""How much memory the KV cache may take while rows are decoded.

a token    2 (key and value) * layers * key/value heads * head size * bytes of a number
a CPU      CPU_CACHE_BYTES
a GPU      half of the free memory, counting what the sampler itself already holds as free

The responses of a prompt are decoded together, so these must fit, or the run is refused before it
starts: group size * (longest prompt + max_new_tokens) * (a token's bytes + SAMPLE_BYTES).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import AnyDecoder, Policy
from counterpoise.types import Ints, Prompt

CPU_CACHE_BYTES = 4 << 30
SAMPLE_BYTES = 16  # of a sampled token: its id, its log-probability and the random number


def kv_bytes_allowed(decoder: AnyDecoder, bytes_held: int) -> int:
    """Bytes that the keys and values of all rows may take; the sampler holds `bytes_held` now."""
    device = decoder.device
    if device.type != "cuda":
        return CPU_CACHE_BYTES
    # Memory that torch has reserved but not allocated is free for us as well.
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free: int = torch.cuda.mem_get_info(device)[0]
    return (free + unused + bytes_held) // 2


def check_cache_fits(
    policy: Policy, prompts: Sequence[tuple[Prompt, Ints]], config: SampleConfig
) -> None:
    """Refuse responses that are longer than the memory of the machine could ever hold."""
    if config.engine != "native":
        return
    token_bytes = policy.decoder.kv_bytes_per_token + SAMPLE_BYTES
    longest_prompt = max(len(tokens) for _, tokens in prompts)
    total_bytes = total_memory(policy.device)
    needed_bytes = config.group_size * (longest_prompt + config.max_new_tokens) * token_bytes
    if needed_bytes <= total_bytes:
        return
    fitting_tokens = total_bytes // (config.group_size * token_bytes) - longest_prompt
    remedy = (
        f"at most {fitting_tokens:,} fit" if fitting_tokens > 0 else "lower sample.group_size too"
    )
    raise PoiseError(
        f"sample.max_new_tokens={config.max_new_tokens}: the {config.group_size} responses of a "
        f"prompt would take {needed_bytes / 1e9:,.0f} GB, and there are {total_bytes / 1e9:,.0f}: "
        f"{remedy}"
    )


def total_memory(device: torch.device) -> int:
    """All memory of the device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
