"""The residuals of a batch's tokens, the factors that coupling and pushes are computed from.

    r_j = e_{o_j} - pi_j        pi_j = softmax(W h_j)        every use is a product r_j^T ... r_k

r_j is the derivative of log pi(o_j) by the product W h_j. Where a model caps its logits softly,
pi_j = softmax(c tanh(W h_j / c)), every entry of r_j has the cap's slope as a factor.

Because r always appears twice, -r = pi - e_o serves as well and saves a pass over [n, V]. Residuals
are computed in chunks of `CHUNK_BYTES`. A batch of a few chunks (`STORED_CHUNKS`) stores them; for
a larger one they are recomputed at each use.

`precision` is that of the factors of the large products: logits, r, h and the M of
`coupling_sums.py`; sums are float32 or wider. float16 keeps 11 bits of each, bfloat16 8, and both
run at the full rate of a GPU. Confident tokens need care: where pi(o) is near 1, rounding leaves
nothing of 1 - pi(o). In half precision that entry is therefore the sum of all the others, so that r
still adds up to 0, as it must.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.model.head import cap_logits, cap_slope
from counterpoise.model.memory_share import allowed_bytes

CHUNK_BYTES = {"cpu": 1 << 26, "cuda": 1 << 31}  # bytes of [n, V] that one chunk may hold
STORED_CHUNKS = {"cpu": 1, "cuda": 4}  # a batch of at most so many chunks stays in memory
HALF_DTYPES = (torch.float16, torch.bfloat16)
ALIGN = 64  # tokens of a product come in multiples of this, as a GPU's fast kernels require


class Residuals:
    """The negative residuals -r of any tokens of one batch.

    Example:
        residuals = Residuals(hidden, W, tokens)
        R, H = residuals.gather(torch.tensor([3, 17]))              # [2, V] and [2, D]
        accurate_product(R, R.mT) * accurate_product(H, H.mT)       # their kernel
    """

    def __init__(
        self,
        hidden: Tensor,
        unembedding: Tensor,
        tokens: Tensor,
        *,
        precision: torch.dtype | None = None,
        softcap: float = 0.0,
    ) -> None:
        self.device = hidden.device
        self.sum_dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        self.precision = precision or self.sum_dtype
        self.softcap = softcap
        self.hidden, self.W = hidden, unembedding.to(self.precision)
        self.given_tokens, self.tokens = tokens, self.to_device(tokens).long()
        bytes_per_token = len(self.W) * self.W.element_size()
        # A whole multiple of ALIGN, unless not even that many tokens fit.
        tokens_that_fit = max(1, chunk_bytes(self.device) // bytes_per_token)
        self.chunk_size = max(tokens_that_fit // ALIGN * ALIGN, min(tokens_that_fit, ALIGN))
        self.stored_residuals: Tensor | None = None
        if len(tokens) <= STORED_CHUNKS[self.device.type] * self.chunk_size:
            all_residuals = self.W.new_empty(len(tokens), len(self.W))
            all_indices = torch.arange(len(tokens), device=self.device)
            for indices, destination in zip(
                all_indices.split(self.chunk_size),
                all_residuals.split(self.chunk_size),
                strict=True,
            ):
                destination.copy_(self._compute(indices))
            self.stored_residuals = all_residuals

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def host_tokens(self) -> NDArray[np.int64]:
        """The tokens on the CPU; waits for a GPU only if they were given there."""
        return self.given_tokens.cpu().numpy().astype(np.int64)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """(R [..., V], H [..., D]) of the tokens [...], at most a chunk of them."""
        flat_indices = indices.flatten()
        R = (
            self._compute(flat_indices)
            if self.stored_residuals is None
            else self.stored_residuals.index_select(0, flat_indices)
        )
        H = self.hidden.index_select(0, flat_indices).to(self.precision)
        return R.view(*indices.shape, -1), H.view(*indices.shape, -1)

    def iterate_chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(slice of tokens, R, H) of all tokens in order, a chunk at a time."""
        yield from self.iterate_range(0, len(self), self.chunk_size)

    def iterate_range(
        self, start: int, end: int, size: int
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(slice of tokens, R, H) of the tokens from `start` to `end`, `size` at a time.

        Stored residuals are not copied.
        """
        for chunk_start in range(start, end, size):
            chunk = slice(chunk_start, min(chunk_start + size, end))
            if self.stored_residuals is None:
                R = self._compute(torch.arange(chunk.start, chunk.stop, device=self.device))
            else:
                R = self.stored_residuals[chunk]
            yield chunk, R, self.hidden[chunk].to(self.precision)

    def to_device(self, values: Tensor | NDArray[np.generic]) -> Tensor:
        """The values on the device of the hidden states, copied without waiting."""
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
        return tensor.to(self.device, non_blocking=True)

    @torch.no_grad()
    def _compute(self, indices: Tensor) -> Tensor:
        """-r = pi - e_o of the tokens [n]: [n, V]."""
        H, tokens = self.hidden[indices].to(self.precision), self.tokens[indices, None]
        if self.precision not in HALF_DTYPES:
            logits = cap_logits(H @ self.W.mT, self.softcap)
            R = torch.softmax(logits, dim=-1)
            R = R.scatter_add_(1, tokens, R.new_full(tokens.shape, -1))
            return R.mul_(cap_slope(logits, self.softcap)) if self.softcap else R
        logits = H @ self.W.mT if H.is_cuda else accurate_product(H, self.W.mT).to(self.precision)
        logits = cap_logits(logits, self.softcap)
        # 1 - pi(o) would be rounded away for confident tokens: sum the other entries instead.
        R = torch.softmax(logits, dim=-1).scatter_(1, tokens, 0)
        other_mass = R.sum(dim=-1, keepdim=True, dtype=self.sum_dtype)
        R = R.scatter_(1, tokens, -other_mass.to(self.precision))
        return R.mul_(cap_slope(logits, self.softcap)) if self.softcap else R


def residuals_at_temperature(
    hidden: Tensor, unembedding: Tensor, tokens: Tensor, temperature: float, softcap: float = 0.0
) -> Residuals:
    """Residuals of the distributions that the tokens were sampled from.

    They are float16 if the hidden states are in half precision on a GPU, else float32 or wider.
    """
    # c tanh(z / c) / T = (c / T) tanh((z / T) / (c / T)): both scales are folded in once.
    if temperature != 1:
        unembedding, softcap = wide(unembedding) / temperature, softcap / temperature
    # float16 has three more bits of mantissa than bfloat16, and residuals fit its range.
    is_half = hidden.is_cuda and hidden.dtype in HALF_DTYPES
    precision = torch.float16 if is_half else None
    return Residuals(hidden, unembedding, tokens, precision=precision, softcap=softcap)


def chunk_bytes(device: torch.device) -> int:
    """Bytes of a chunk: `CHUNK_BYTES`, but at most 1/32 of what we may take of a GPU."""
    if device.type != "cuda":
        return CHUNK_BYTES["cpu"]
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return min(CHUNK_BYTES["cuda"], allowed_bytes(total_bytes) // 32)


def accurate_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, batched or not; half precision is accumulated and returned in float32."""
    if a.dtype not in HALF_DTYPES:
        return a @ b
    if not a.is_cuda:  # equally accurate, and CPUs are slow at half precision anyway
        return a.float() @ b.float()
    multiply = torch.bmm if a.dim() == 3 else torch.mm
    return multiply(a, b, out_dtype=torch.float32)


def wide(tensor: Tensor) -> Tensor:
    """Half precision as float32: products of small residuals need it."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
