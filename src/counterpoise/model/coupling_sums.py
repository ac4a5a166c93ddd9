"""Sums over the tokens of a batch, by the sign of the one that pushes.

A set of tokens that push each other is summed up by its kernel or by its matrix M, whichever is
cheaper; `microscope/coupling.py` says which sets, and why. Sums are [N + 1, 2], a row for each
token: pushed by positive tokens, pushed by negative ones. The last row is that of padding, which
has no advantage, so that it pushes nobody, and whose sums nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.coupling_sets import CouplingSets, TokenIndices, lay_out_sets
from counterpoise.model.residuals import ALIGN, HALF_DTYPES, Residuals, accurate_product

ROW_WIDTH = {"cpu": 128, "cuda": 256}  # tokens of small sets that share one kernel
HALF_PRECISION_PEAK = 1024.0  # largest entry of an M in half precision: float16 ends at 65504

BlockVisitor = Callable[[Tensor, Tensor, Tensor, Tensor], None]  # (places, R, H, |r|^2 |h|^2)


class SignedMatrix(NamedTuple):
    """M+ and M- side by side."""

    values: Tensor  # [V, 2D]
    scale: Tensor | float  # what the values were divided by


class TokenChunk(NamedTuple):
    """Some tokens, sorted by sign, filled up with padding to a multiple of ALIGN."""

    indices: Tensor  # [n]
    R: Tensor  # [n, V]
    H: Tensor  # [n, D]
    sign_slices: tuple[
        slice, slice
    ]  # the positive ones, the negative ones; whole multiples of ALIGN


class CouplingSums:
    def __init__(self, residuals: Residuals, advantages: Tensor) -> None:
        self.residuals = residuals
        self.sign_N = np.sign(advantages.cpu().double().numpy())
        A_N = residuals.to_device(advantages).to(residuals.sum_dtype)
        self.advantage_scale = A_N.abs().max().clamp(min=torch.finfo(residuals.sum_dtype).tiny)
        A_N = torch.cat((A_N / self.advantage_scale, A_N.new_zeros(1)))
        self.A_N2 = torch.stack((A_N.clamp(min=0), A_N.clamp(max=0)), dim=1)
        self.row_width = min(
            ROW_WIDTH["cuda" if residuals.hidden.is_cuda else "cpu"], residuals.chunk_size
        )
        V, D = residuals.W.shape
        self.break_even_size = 3 * V * D // (V + D)  # 2 n^2 (V + D) = 6 n V D

    def zeros(self) -> Tensor:
        return torch.zeros_like(self.A_N2)

    def lay_out_sets(
        self, key_N: TokenIndices, max_size: int, subset: TokenIndices | None = None
    ) -> CouplingSets:
        """Sets of equal key; of all tokens, or of those at `subset`. No kernel above `max_size`."""
        max_size = max(self.row_width, min(max_size, self.residuals.chunk_size))
        if subset is None:
            return lay_out_sets(key_N, row_width=self.row_width, max_size=max_size)
        found = lay_out_sets(key_N[subset], row_width=self.row_width, max_size=max_size)
        places = np.append(subset, len(key_N))
        return CouplingSets(
            tuple(places[b] for b in found.blocks), tuple(places[s] for s in found.large_sets)
        )

    def sums_within(
        self, sets: CouplingSets, keys: Sequence[TokenIndices], visit: BlockVisitor | None = None
    ) -> list[Tensor]:
        """[N + 1, 2] for each key: what those do to a token that agree with it so far.

        The first key made the sets; the next ones cut them further, but large sets are left out.
        """
        sums = [self.zeros() for _ in keys]
        keys_N = [self.residuals.to_device(np.append(key, -1)) for key in keys]
        for places, R, H in self._blocks(sets):
            K = accurate_product(R, R.mT) * accurate_product(H, H.mT)
            squares = K.diagonal(dim1=1, dim2=2)
            if visit:
                visit(places, R, H, squares)
            squares.zero_()
            for key_N, sum_ in zip(keys_N, sums, strict=True):
                key = key_N[places]
                K *= key[:, :, None] == key[:, None]
                sum_[places] = K @ self.A_N2[places]
        for members in sets.large_sets:
            fits = len(members) <= self.residuals.chunk_size
            once = list(self.chunks(members)) if fits else None
            M = self.signed_matrix(once or self.chunks(members))
            for places, R, H, _ in once or self.chunks(members):
                squares = _square(R, self.residuals.sum_dtype) * _square(
                    H, self.residuals.sum_dtype
                )
                if visit:
                    visit(places, R, H, squares)
                own = self.A_N2[places] * squares[:, None]
                sums[0][places] = self.apply_matrix(M, R, H) - own
        return sums

    def signed_matrix(self, chunks: Iterable[TokenChunk]) -> SignedMatrix:
        """M = sum_k A_k r_k h_k^T, by sign."""
        W = self.residuals.W
        M = W.new_zeros(len(W), 2 * W.shape[1], dtype=self.residuals.sum_dtype)
        for chunk in chunks:
            A_n2 = self.A_N2[chunk.indices]  # 0 for the few tokens of the other sign in a slice
            for half, part, A_n in zip(
                M.chunk(2, dim=1), chunk.sign_slices, A_n2.unbind(1), strict=True
            ):
                weighted = (A_n[part, None] * chunk.H[part]).to(W.dtype)
                half += accurate_product(chunk.R[part].mT, weighted)
        if self.residuals.precision not in HALF_DTYPES:
            return SignedMatrix(M, 1.0)
        unit = torch.linalg.vector_norm(M, ord=torch.inf).clamp(min=1e-30) / HALF_PRECISION_PEAK
        return SignedMatrix((M / unit).to(self.residuals.precision), unit)

    def apply_matrix(self, M: SignedMatrix, R: Tensor, H: Tensor) -> Tensor:
        """r_j^T M h_j for both halves: [..., 2]."""
        *shape, D = H.shape
        pushed = accurate_product(R.flatten(0, -2), M.values).view(*shape, 2, D)
        return (pushed * H.unsqueeze(-2)).sum(dim=-1) * M.scale

    def _blocks(self, sets: CouplingSets) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(places [B, w], R, H), a chunk's worth at a time."""
        last = len(self.residuals) - 1
        for block in sets.blocks:
            rows = max(1, self.residuals.chunk_size // block.shape[1])
            for start in range(0, len(block), rows):
                places = self.residuals.to_device(block[start : start + rows])
                yield places, *self.residuals.gather(places.clamp(max=last))

    def chunks(self, members: TokenIndices) -> Iterator[TokenChunk]:
        """Positive tokens first, so that those of one sign are a slice."""
        signs = self.sign_N[members]
        members, signs = members[np.argsort(-signs, kind="stable")], np.sort(signs)[::-1]
        nobody = len(self.residuals)
        for start in range(0, len(members), self.residuals.chunk_size):
            part = slice(start, start + self.residuals.chunk_size)
            padded = np.append(members[part], np.full(-len(members[part]) % ALIGN, nobody))
            places = self.residuals.to_device(padded)
            first, last = int((signs[part] > 0).sum()), int((signs[part] >= 0).sum())
            by_sign = slice(-(-first // ALIGN) * ALIGN), slice(last // ALIGN * ALIGN, None)
            yield TokenChunk(places, *self.residuals.gather(places.clamp(max=nobody - 1)), by_sign)


def _square(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=dtype).square()
