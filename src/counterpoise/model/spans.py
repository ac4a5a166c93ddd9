"""Ranges of tokens, and the indices in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.model.transfer import to_device

Span = tuple[int, int]  # [start, end), tokens of a response


def span_indices(spans: Sequence[Span] | NDArray[np.integer], device: torch.device) -> Tensor:
    """All indices of the spans, span after span: [n]."""
    start_S, end_S = np.array(spans, dtype=np.int64).T
    length_S = end_S - start_S
    shift_S = start_S - (np.cumsum(length_S) - length_S)
    return to_device(np.arange(length_S.sum()) + np.repeat(shift_S, length_S), device)
