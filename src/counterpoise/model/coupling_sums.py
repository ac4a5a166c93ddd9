"""Sums of the pushes that each token of a batch receives, by the sign of the pushing token.

A set of tokens that push each other is summed in one of two ways, whichever is cheaper:

    kernel matrix   K[j, k] = (r_j . r_k)(h_j . h_k)        sum_k K[j, k] A_k
    matrix M        M = sum_k A_k r_k h_k^T                 r_j^T M h_j

`microscope/coupling.py` says which sets, and why. Sums are [N + 1, 2], a row for each token: pushed
by positive tokens, pushed by negative ones. The last row belongs to padding, which has no
advantage, so it pushes no token, and its own sums are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.coupling_sets import CouplingSets, TokenIndices, lay_out_sets
from counterpoise.model.residuals import ALIGN, HALF_DTYPES, Residuals, accurate_product

ROW_WIDTH = {"cpu": 128, "cuda": 256}  # tokens of small sets that share one kernel matrix
HALF_PRECISION_PEAK = 1024.0  # largest entry of an M in half precision: float16 ends at 65504

BlockVisitor = Callable[[Tensor, Tensor, Tensor, Tensor], None]  # (indices, R, H, |r|^2 |h|^2)


class SignedMatrix(NamedTuple):
    """M = sum_k A_k r_k h_k^T of the positive and of the negative tokens, side by side."""

    values: Tensor  # [V, 2D]
    scale: Tensor | float  # what the values were divided by


class TokenChunk(NamedTuple):
    """Tokens sorted by the sign of their advantage, padded to a multiple of ALIGN."""

    indices: Tensor  # [n]
    R: Tensor  # [n, V]
    H: Tensor  # [n, D]
    sign_slices: tuple[slice, slice]  # positive, negative; bounds are multiples of ALIGN


class CouplingSums:
    """Computes, for every token, the sum of the pushes it receives from other tokens."""

    def __init__(self, residuals: Residuals, advantages: Tensor) -> None:
        self.residuals = residuals
        self.sign_N = np.sign(advantages.cpu().double().numpy())
        A_N = residuals.to_device(advantages).to(residuals.sum_dtype)
        self.advantage_scale = A_N.abs().max().clamp(min=torch.finfo(residuals.sum_dtype).tiny)
        # One more entry, 0, for padding; scaled to 1 so that half precision does not overflow.
        A_N = torch.cat((A_N / self.advantage_scale, A_N.new_zeros(1)))
        self.A_N2 = torch.stack((A_N.clamp(min=0), A_N.clamp(max=0)), dim=1)
        self.row_width = min(
            ROW_WIDTH["cuda" if residuals.hidden.is_cuda else "cpu"], residuals.chunk_size
        )
        V, D = residuals.W.shape
        # Sets of fewer tokens are cheaper by K than by M: 2 n^2 (V + D) = 6 n V D.
        self.break_even_size = 3 * V * D // (V + D)

    @property
    def nested_break_even_size(self) -> int:
        """The break-even size where one K serves two keys, a coarse and a finer one: K pays off in
        somewhat larger sets."""
        return 4 * self.break_even_size // 3 + self.row_width

    def zeros(self) -> Tensor:
        """Sums [N + 1, 2], all zero."""
        return torch.zeros_like(self.A_N2)

    def lay_out_sets(
        self, key_N: TokenIndices, max_size: int, subset: TokenIndices | None = None
    ) -> CouplingSets:
        """Sets of equal key among all tokens or a `subset`; no K above `max_size` tokens."""
        max_size = max(self.row_width, min(max_size, self.residuals.chunk_size))
        if subset is None:
            return lay_out_sets(key_N, row_width=self.row_width, max_size=max_size)
        local_sets = lay_out_sets(key_N[subset], row_width=self.row_width, max_size=max_size)
        global_indices = np.append(subset, len(key_N))
        return CouplingSets(
            tuple(global_indices[block] for block in local_sets.blocks),
            tuple(global_indices[members] for members in local_sets.large_sets),
        )

    def sums_within(
        self, sets: CouplingSets, keys: Sequence[TokenIndices], visit: BlockVisitor | None = None
    ) -> list[Tensor]:
        """[N + 1, 2] for each key: pushes from the tokens that agree in this and all earlier keys.

        The first key must be the one that formed the sets. Further keys divide them more finely.
        Of large sets only the sums of the first key are computed; those of further keys stay 0.
        """
        sums_by_key = [self.zeros() for _ in keys]
        keys_N = [self.residuals.to_device(np.append(token_keys, -1)) for token_keys in keys]
        for indices, R, H in self._blocks(sets):
            # K[j, k] = (r_j . r_k)(h_j . h_k): how strongly token k pushes token j per advantage.
            K = accurate_product(R, R.mT) * accurate_product(H, H.mT)
            self_kernel = K.diagonal(dim1=1, dim2=2)
            if visit:
                visit(indices, R, H, self_kernel)
            self_kernel.zero_()  # a view of the diagonal of K: no token pushes itself
            for key_N, key_sums in zip(keys_N, sums_by_key, strict=True):
                # Keys are ordered from coarse to fine, so K loses entries from one to the next.
                block_keys = key_N[indices]
                K *= block_keys[:, :, None] == block_keys[:, None]
                key_sums[indices] = K @ self.A_N2[indices]
        for members in sets.large_sets:
            fits_one_chunk = len(members) <= self.residuals.chunk_size
            # Large sets go through M. A set of one chunk computes its residuals only once.
            stored_chunks = list(self.chunks(members)) if fits_one_chunk else None
            M = self.signed_matrix(stored_chunks or self.chunks(members))
            for indices, R, H, _ in stored_chunks or self.chunks(members):
                self_kernel = self._square(R) * self._square(H)
                if visit:
                    visit(indices, R, H, self_kernel)
                self_push = self.A_N2[indices] * self_kernel[:, None]
                sums_by_key[0][indices] = self.apply_matrix(M, R, H) - self_push
        return sums_by_key

    def signed_matrix(self, chunks: Iterable[TokenChunk]) -> SignedMatrix:
        """M = sum_k A_k r_k h_k^T, by sign."""
        W = self.residuals.W
        M = W.new_zeros(len(W), 2 * W.shape[1], dtype=self.residuals.sum_dtype)
        for chunk in chunks:
            # Slices end at multiples of ALIGN and may include a few tokens of the other sign: their
            # weight here is 0.
            A_n2 = self.A_N2[chunk.indices]
            for M_sign, same_sign, A_n in zip(
                M.chunk(2, dim=1), chunk.sign_slices, A_n2.unbind(1), strict=True
            ):
                weighted_states = (A_n[same_sign, None] * chunk.H[same_sign]).to(W.dtype)
                M_sign += accurate_product(chunk.R[same_sign].mT, weighted_states)
        if self.residuals.precision not in HALF_DTYPES:
            return SignedMatrix(M, 1.0)
        # Scaled so that the largest entry is far from overflow in float16.
        scale = torch.linalg.vector_norm(M, ord=torch.inf).clamp(min=1e-30) / HALF_PRECISION_PEAK
        return SignedMatrix((M / scale).to(self.residuals.precision), scale)

    def apply_matrix(self, M: SignedMatrix, R: Tensor, H: Tensor) -> Tensor:
        """r_j^T M h_j for both halves: [..., 2]."""
        *shape, D = H.shape
        pushed = accurate_product(R.flatten(0, -2), M.values).view(*shape, 2, D)
        return (pushed * H.unsqueeze(-2)).sum(dim=-1) * M.scale

    def _blocks(self, sets: CouplingSets) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(indices [B, w], R, H), at most a chunk of tokens at a time."""
        last_token = len(self.residuals) - 1
        for block in sets.blocks:
            rows_per_chunk = max(1, self.residuals.chunk_size // block.shape[1])
            for start in range(0, len(block), rows_per_chunk):
                indices = self.residuals.to_device(block[start : start + rows_per_chunk])
                yield indices, *self.residuals.gather(indices.clamp(max=last_token))

    def chunks(self, members: TokenIndices) -> Iterator[TokenChunk]:
        """The members in chunks, positive tokens first, so that those of one sign are a slice."""
        member_signs = self.sign_N[members]
        members = members[np.argsort(-member_signs, kind="stable")]
        member_signs = np.sort(member_signs)[::-1]
        padding_index = len(self.residuals)
        for start in range(0, len(members), self.residuals.chunk_size):
            chunk = slice(start, start + self.residuals.chunk_size)
            padded_members = np.append(
                members[chunk], np.full(-len(members[chunk]) % ALIGN, padding_index)
            )
            indices = self.residuals.to_device(padded_members)
            positive_end = int((member_signs[chunk] > 0).sum())
            negative_start = int((member_signs[chunk] >= 0).sum())
            sign_slices = (
                slice(-(-positive_end // ALIGN) * ALIGN),
                slice(negative_start // ALIGN * ALIGN, None),
            )
            yield TokenChunk(
                indices, *self.residuals.gather(indices.clamp(max=padding_index - 1)), sign_slices
            )

    def _square(self, vectors: Tensor) -> Tensor:
        """|x|^2 over the last axis."""
        return torch.linalg.vector_norm(vectors, dim=-1, dtype=self.residuals.sum_dtype).square()
