"""The errors of a batch's tokens, for products of them: what coupling and pushes are made of.

    r_j = e_{o_j} - pi_j        pi_j = softmax(W h_j)        every use is a product r_j^T ... r_k

so -r = pi - e_o serves as well, and saves a pass over [n, V]. They are computed a chunk of `CHUNK_BYTES`
at a time. A batch of a few chunks (`STORED_CHUNKS`) keeps them; for a larger one they are computed again
whenever asked for.

`precision` is that of logits, r, h and M, the factors of the large products; sums are float32 or
wider. float16 keeps 11 bits of each, bfloat16 8, and both run at the full rate of a GPU. Confident
tokens need care: where pi(o) is near 1, rounding leaves nothing of 1 - pi(o). In half precision
that one entry is the sum of all the others, so an r still adds up to 0, as it must.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK_BYTES = {"cpu": 1 << 26, "cuda": 1 << 31}  # bytes of [n, V] that one chunk may hold
STORED_CHUNKS = {"cpu": 1, "cuda": 4}  # chunks
HALF_DTYPES = (torch.float16, torch.bfloat16)
ALIGN = 64  # tokens of a product come in multiples of this: a GPU's fast kernels want it so


class Residuals:
    """-r of any tokens of one batch.

    Example:
        errors = Residuals(hidden, W, tokens)
        R, H = errors.of(torch.tensor([3, 17]))     # [2, V] and [2, D]
        product(R, R.mT) * product(H, H.mT)         # their kernel
    """

    def __init__(
        self,
        hidden: Tensor,
        unembedding: Tensor,
        tokens: Tensor,
        *,
        precision: torch.dtype | None = None,
    ) -> None:
        self.device = hidden.device
        self.sum_dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        self.precision = precision or self.sum_dtype
        self.hidden, self.W = hidden, unembedding.to(self.precision)
        self.tokens = self.to_device(tokens).long()
        size = len(self.W) * self.W.element_size()
        tokens_that_fit = max(1, chunk_bytes(self.device) // size)
        self.chunk_size = max(tokens_that_fit // ALIGN * ALIGN, min(tokens_that_fit, ALIGN))
        self.stored_residuals: Tensor | None = None
        if len(tokens) <= STORED_CHUNKS[self.device.type] * self.chunk_size:
            kept = self.W.new_empty(len(tokens), len(self.W))
            whole = torch.arange(len(tokens), device=self.device)
            for places, part in zip(
                whole.split(self.chunk_size), kept.split(self.chunk_size), strict=True
            ):
                part.copy_(self._compute(places))
            self.stored_residuals = kept

    def __len__(self) -> int:
        return len(self.tokens)

    def gather(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """(R [..., V], H [..., D]) of tokens [...]; the caller keeps them to a chunk."""
        flat = places.flatten()
        R = (
            self._compute(flat)
            if self.stored_residuals is None
            else self.stored_residuals.index_select(0, flat)
        )
        H = self.hidden.index_select(0, flat).to(self.precision)
        return R.view(*places.shape, -1), H.view(*places.shape, -1)

    def iterate_chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(places, R, H) of all tokens in order, a chunk at a time."""
        N = len(self)
        for start in range(0, N, self.chunk_size):
            part = slice(start, min(start + self.chunk_size, N))
            places = torch.arange(part.start, part.stop, device=self.device)
            R = (
                self._compute(places)
                if self.stored_residuals is None
                else self.stored_residuals[part]
            )
            yield part, R, self.hidden[part].to(self.precision)

    def to_device(self, values: Tensor | NDArray[np.generic]) -> Tensor:
        """On the device, without waiting for it."""
        made = values if isinstance(values, Tensor) else torch.from_numpy(values)
        return made.to(self.device, non_blocking=True)

    @torch.no_grad()
    def _compute(self, places: Tensor) -> Tensor:
        H, tokens = self.hidden[places].to(self.precision), self.tokens[places, None]
        if self.precision not in HALF_DTYPES:
            R = torch.softmax(H @ self.W.mT, dim=-1)
            return R.scatter_add_(1, tokens, R.new_full(tokens.shape, -1))
        logits = H @ self.W.mT if H.is_cuda else accurate_product(H, self.W.mT).to(self.precision)
        R = torch.softmax(logits, dim=-1).scatter_(1, tokens, 0)
        others = R.sum(dim=-1, keepdim=True, dtype=self.sum_dtype)
        return R.scatter_(1, tokens, -others.to(self.precision))


def chunk_bytes(device: torch.device) -> int:
    """Bytes of a chunk: `MEMORY`, and at most a thirty-second of a GPU."""
    if device.type != "cuda":
        return CHUNK_BYTES["cpu"]
    return min(CHUNK_BYTES["cuda"], torch.cuda.get_device_properties(device).total_memory // 32)


def accurate_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, with or without a batch; half precision is summed up, and returned, in float32."""
    if a.dtype not in HALF_DTYPES:
        return a @ b
    if not a.is_cuda:  # the same numbers; CPUs are slow at half precision anyway
        return a.float() @ b.float()
    multiply = torch.bmm if a.dim() == 3 else torch.mm
    return multiply(a, b, out_dtype=torch.float32)


def wide(x: Tensor) -> Tensor:
    """Half precision as float32: products of small residuals need it."""
    return x if x.dtype == torch.float64 else x.float()
