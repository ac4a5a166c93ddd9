"""How much of a GPU's memory this process may take, where several share the device.

    POISE_MEMORY_SHARE=0.25 poise train ...     a quarter of it; without the variable, all

A run plans with the memory that is free when it starts, so two runs on one GPU plan with what the
other is about to take, and one of them runs out. `poise experiment` and `poise study` therefore
give each of n runs that they train at a time 1 / n of the memory. The limit is the allocator's: a
pass that would cross it is split as if the device were full (`fit_memory.py`). It does nothing on a
CPU.
"""

from __future__ import annotations

import os

import torch

from counterpoise.errors import PoiseError

MEMORY_SHARE_VARIABLE = "POISE_MEMORY_SHARE"
# A process takes about this much outside the allocator: the CUDA context, libraries and graphs.
CONTEXT_BYTES = 700 * 10**6


def memory_share() -> float:
    """The share that the environment allows, 1 without the variable."""
    text = os.environ.get(MEMORY_SHARE_VARIABLE, "").strip()
    if not text:
        return 1.0
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise PoiseError(
            f"{MEMORY_SHARE_VARIABLE}={text}: give the share of the GPU's memory that this process "
            "may take, above 0 and at most 1"
        )
    return share


def apply_memory_share(device: torch.device) -> None:
    """Limit torch's allocator on this GPU to the share."""
    share = memory_share()
    if device.type == "cuda" and share < 1:
        total_bytes: int = torch.cuda.mem_get_info(device)[1]
        # torch refuses a device without an index here.
        index = torch.cuda.current_device() if device.index is None else device.index
        fraction = allowed_bytes(total_bytes) / total_bytes
        torch.cuda.set_per_process_memory_fraction(fraction, index)


def allowed_bytes(total_bytes: int) -> int:
    """Bytes that the allocator may reserve of a GPU with so many.

    Example:
        >>> os.environ["POISE_MEMORY_SHARE"] = "0.5"
        >>> allowed_bytes(80 * 10**9)
        39300000000
    """
    share = memory_share()
    if share == 1:
        return total_bytes
    num_bytes = round(share * total_bytes) - CONTEXT_BYTES
    if num_bytes <= 0:
        raise PoiseError(
            f"out of memory: a share of {share:g} of {total_bytes / 1e9:.1f} GB leaves nothing "
            f"beside the {CONTEXT_BYTES / 1e9:.1f} GB that CUDA itself takes: train fewer runs at "
            "a time (--jobs)"
        )
    return num_bytes


def free_bytes(device: torch.device) -> int:
    """Bytes of a GPU that the allocator can still reserve."""
    free, total = torch.cuda.mem_get_info(device)
    return max(0, min(free, allowed_bytes(total) - torch.cuda.memory_reserved(device)))
