"""How much memory the KV cache may take while rows are decoded.

a token    2 (key and value) * layers * key/value heads * head size * bytes of a number
a CPU      CPU_CACHE_BYTES
a GPU      half of the free memory, counting what the sampler itself already holds as free
"""

from __future__ import annotations

import torch

from counterpoise.model.load import AnyDecoder

CPU_CACHE_BYTES = 4 << 30


def kv_bytes_allowed(decoder: AnyDecoder, bytes_held: int) -> int:
    """Bytes that the keys and values of all rows may take; the sampler holds `bytes_held` now."""
    device = decoder.device
    if device.type != "cuda":
        return CPU_CACHE_BYTES
    # Memory that torch has reserved but not allocated is free for us as well.
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free: int = torch.cuda.mem_get_info(device)[0]
    return (free + unused + bytes_held) // 2
