"""Attention of copies, one query and head at a time: `model/kernels/copies.py`, as it says."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def attend(
    q: Tensor, k: Tensor, v: Tensor, cached_k: Tensor, cached_v: Tensor, spans_C8: np.ndarray
) -> Tensor:
    out = torch.zeros_like(q)
    group, d = q.shape[1] // k.shape[1], q.shape[2]
    for (first, queries), (own, length), prompt, prefix in spans_C8.reshape(-1, 4, 2).tolist():
        for t in range(queries):
            end = own + length - queries + t + 1
            stretches = (
                (cached_k, cached_v, prompt[0], sum(prompt)),
                (cached_k, cached_v, prefix[0], sum(prefix)),
                (k, v, own, end),
            )
            keys, values = (
                torch.cat([stretch[of][stretch[2] : stretch[3]] for stretch in stretches])
                for of in (0, 1)
            )
            for h in range(q.shape[1]):
                scores = keys[:, h // group] @ q[first + t, h] / d**0.5
                out[first + t, h] = scores.softmax(0) @ values[:, h // group]
    return out
