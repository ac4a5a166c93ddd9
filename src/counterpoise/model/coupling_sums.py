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

from counterpoise.model.coupling_sets import Places, Sets, lay_out
from counterpoise.model.residuals import ALIGN, HALF, Errors, product

BASE = {"cpu": 128, "cuda": 256}  # tokens of small sets that share one kernel
PEAK = 1024.0  # largest entry of an M in half precision: float16 ends at 65504

Visit = Callable[[Tensor, Tensor, Tensor, Tensor], None]  # (places, R, H, |r|^2 |h|^2)


class Matrix(NamedTuple):
    """M+ and M- side by side."""

    values: Tensor  # [V, 2D]
    unit: Tensor | float  # what the values were divided by


class Chunk(NamedTuple):
    """Some tokens, sorted by sign, filled up with padding to a multiple of ALIGN."""

    places: Tensor  # [n]
    R: Tensor  # [n, V]
    H: Tensor  # [n, D]
    signs: tuple[slice, slice]  # the positive ones, the negative ones; whole multiples of ALIGN


class Walk:
    def __init__(self, errors: Errors, advantages: Tensor) -> None:
        self.errors = errors
        self.sign_N = np.sign(advantages.cpu().double().numpy())
        A_N = errors.here(advantages).to(errors.wide)
        self.unit = A_N.abs().max().clamp(min=torch.finfo(errors.wide).tiny)
        A_N = torch.cat((A_N / self.unit, A_N.new_zeros(1)))
        self.A_N2 = torch.stack((A_N.clamp(min=0), A_N.clamp(max=0)), dim=1)
        self.base = min(BASE["cuda" if errors.hidden.is_cuda else "cpu"], errors.chunk)
        V, D = errors.W.shape
        self.few = 3 * V * D // (V + D)  # 2 n^2 (V + D) = 6 n V D

    def zeros(self) -> Tensor:
        return torch.zeros_like(self.A_N2)

    def lay_out(self, key_N: Places, most: int, among: Places | None = None) -> Sets:
        """Sets of equal key; of all tokens, or of those at `among`. No kernel above `most`."""
        most = max(self.base, min(most, self.errors.chunk))
        if among is None:
            return lay_out(key_N, base=self.base, most=most)
        found = lay_out(key_N[among], base=self.base, most=most)
        places = np.append(among, len(key_N))
        return Sets(tuple(places[b] for b in found.blocks), tuple(places[s] for s in found.large))

    def sums_within(
        self, sets: Sets, keys: Sequence[Places], visit: Visit | None = None
    ) -> list[Tensor]:
        """[N + 1, 2] for each key: what those do to a token that agree with it so far.

        The first key made the sets; the next ones cut them further, but large sets are left out.
        """
        sums = [self.zeros() for _ in keys]
        keys_N = [self.errors.here(np.append(key, -1)) for key in keys]
        for places, R, H in self._blocks(sets):
            K = product(R, R.mT) * product(H, H.mT)
            squares = K.diagonal(dim1=1, dim2=2)
            if visit:
                visit(places, R, H, squares)
            squares.zero_()
            for key_N, sum_ in zip(keys_N, sums, strict=True):
                key = key_N[places]
                K *= key[:, :, None] == key[:, None]
                sum_[places] = K @ self.A_N2[places]
        for members in sets.large:
            fits = len(members) <= self.errors.chunk
            once = list(self.chunks(members)) if fits else None
            M = self.matrix(once or self.chunks(members))
            for places, R, H, _ in once or self.chunks(members):
                squares = _square(R, self.errors.wide) * _square(H, self.errors.wide)
                if visit:
                    visit(places, R, H, squares)
                own = self.A_N2[places] * squares[:, None]
                sums[0][places] = self.apply(M, R, H) - own
        return sums

    def matrix(self, chunks: Iterable[Chunk]) -> Matrix:
        """M = sum_k A_k r_k h_k^T, by sign."""
        W = self.errors.W
        M = W.new_zeros(len(W), 2 * W.shape[1], dtype=self.errors.wide)
        for chunk in chunks:
            A_n2 = self.A_N2[chunk.places]  # 0 for the few tokens of the other sign in a slice
            for half, part, A_n in zip(M.chunk(2, dim=1), chunk.signs, A_n2.unbind(1), strict=True):
                weighted = (A_n[part, None] * chunk.H[part]).to(W.dtype)
                half += product(chunk.R[part].mT, weighted)
        if self.errors.precision not in HALF:
            return Matrix(M, 1.0)
        unit = torch.linalg.vector_norm(M, ord=torch.inf).clamp(min=1e-30) / PEAK
        return Matrix((M / unit).to(self.errors.precision), unit)

    def apply(self, M: Matrix, R: Tensor, H: Tensor) -> Tensor:
        """r_j^T M h_j for both halves: [..., 2]."""
        *shape, D = H.shape
        pushed = product(R.flatten(0, -2), M.values).view(*shape, 2, D)
        return (pushed * H.unsqueeze(-2)).sum(dim=-1) * M.unit

    def _blocks(self, sets: Sets) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(places [B, w], R, H), a chunk's worth at a time."""
        last = len(self.errors) - 1
        for block in sets.blocks:
            rows = max(1, self.errors.chunk // block.shape[1])
            for start in range(0, len(block), rows):
                places = self.errors.here(block[start : start + rows])
                yield places, *self.errors.of(places.clamp(max=last))

    def chunks(self, members: Places) -> Iterator[Chunk]:
        """Positive tokens first, so that those of one sign are a slice."""
        signs = self.sign_N[members]
        members, signs = members[np.argsort(-signs, kind="stable")], np.sort(signs)[::-1]
        nobody = len(self.errors)
        for start in range(0, len(members), self.errors.chunk):
            part = slice(start, start + self.errors.chunk)
            padded = np.append(members[part], np.full(-len(members[part]) % ALIGN, nobody))
            places = self.errors.here(padded)
            first, last = int((signs[part] > 0).sum()), int((signs[part] >= 0).sum())
            by_sign = slice(-(-first // ALIGN) * ALIGN), slice(last // ALIGN * ALIGN, None)
            yield Chunk(places, *self.errors.of(places.clamp(max=nobody - 1)), by_sign)


def _square(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=dtype).square()
