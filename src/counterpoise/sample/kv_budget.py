"""How much memory keys and values may take while rows are decoded.

a token    2 (key and value) * layers * key/value heads * head size * bytes of a number
a CPU      CACHE_BYTES
a GPU      half of what is free, counting what the sampler itself holds already
"""

from __future__ import annotations

import torch

from counterpoise.model.decoder import Decoder

CPU_CACHE_BYTES = 4 << 30


def kv_bytes_per_token(decoder: Decoder) -> int:
    """Of one token's keys and values."""
    numbers = 2 * len(decoder.layers) * decoder.kv_heads * decoder.head_dim
    return numbers * decoder.unembedding.element_size()


def kv_bytes_allowed(decoder: Decoder, bytes_held: int) -> int:
    """Bytes for the keys and values of all rows; `bytes_held` of them are allocated now."""
    device = decoder.device
    if device.type != "cuda":
        return CPU_CACHE_BYTES
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free: int = torch.cuda.mem_get_info(device)[0]
    return (free + unused + bytes_held) // 2
