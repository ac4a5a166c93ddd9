"""How the trained tokens of a step push held-out tokens, which push nothing themselves.

    push of token k on token j    c_k <h_j, h_k> <r_j, r_k>       c_k = -dL/dlogp_k, r = e_o - pi
    push of a set S on a set Q    sum_{k in S} sum_{j in Q} c_k <h_j, h_k> <r_j, r_k>
                                  = <M_S, M_Q>,     M_S = sum_{k in S} c_k r_k h_k^T,  c_j = 1 in Q

It is what one unit of learning rate adds to the log-probability of Q through the output layer, to
first order, where the step is plain gradient descent.

Only sums over sets are computed, each by the cheaper of two exact ways, as in `coupling.py`:

    matrices   M of every row and of every answer, then their inner products
               2 V D (N + J + R Q) FLOP, plus 2 V D N for each further block of answers in memory,
               or 2 V D J for each further block of rows
    kernel     <h_j, h_k> <r_j, r_k> in blocks, summed at once          2 N J (V + D) FLOP

Legend: N trained tokens, J held-out tokens, R rows, Q answers, V vocabulary, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.model.coupling_sums import CouplingSums
from counterpoise.model.residuals import Residuals, accurate_product, chunk_bytes

STRONGEST_ROWS = 2  # rows in each direction whose tokens are stored for an answer
STRONGEST_TOKENS = 6  # tokens stored of each of these rows


@dataclass(frozen=True, slots=True, eq=False)
class HeldoutSums:
    """The sums of a step, on the device of the model."""

    signed_J2: Tensor  # push of tokens with a positive and with a negative pull
    same_token_J2: Tensor  # the part of it that comes from equal tokens
    by_row_RQ: Tensor
    on_sets_NC: Tensor  # push of every trained token on the mean answer of each set


@dataclass(frozen=True, slots=True, eq=False)
class StrongestTokens:
    """The strongest tokens of the strongest rows, an entry for each token; on the CPU."""

    answers: NDArray[np.int32]
    rows: NDArray[np.int32]
    positions: NDArray[np.int32]
    pushes: NDArray[np.float32]


class HeldoutPushes:
    """Computes sums of pushes on held-out answers from the residuals of one step.

    `residuals` hold the trained tokens, row after row, then the held-out ones, answer after answer.

    Example:
        residuals = Residuals(torch.cat((hidden_N, hidden_J)), W, torch.cat((tokens_N, tokens_J)))
        pushes = HeldoutPushes(residuals, pulls_N, row_lengths, answer_lengths)
        pushes.sums(sets=[[0, 2], [1, 3]]).by_row_RQ
    """

    def __init__(
        self,
        residuals: Residuals,
        pulls_N: Tensor,
        row_lengths: Sequence[int],
        answer_lengths: Sequence[int],
        scale: float = 1.0,
    ) -> None:
        self.residuals = residuals
        self.num_trained, self.num_heldout = sum(row_lengths), sum(answer_lengths)
        self.row_bounds = np.cumsum([0, *row_lengths])
        self.answer_bounds = self.num_trained + np.cumsum([0, *answer_lengths])
        pulls = residuals.to_device(pulls_N).to(residuals.sum_dtype)
        # Pulls are averages over the tokens of a step, too small for half precision: scaled to 1.
        pull_scale = pulls.abs().max().clamp(min=torch.finfo(residuals.sum_dtype).tiny)
        self.scale = scale * pull_scale
        self.weights = torch.cat((pulls / pull_scale, pulls.new_ones(self.num_heldout)))

    @torch.no_grad()
    def sums(self, sets: Sequence[Sequence[int]]) -> HeldoutSums:
        """All sums; `sets` are lists of answers."""
        signed_J2, same_token_J2 = self._sums_by_sign()
        return HeldoutSums(
            signed_J2=self.scale * signed_J2,
            same_token_J2=self.scale * same_token_J2,
            by_row_RQ=self.pushes_by_row(),
            on_sets_NC=self.scale * self._pushes_on_sets(sets),
        )

    def pushes_by_row(self) -> Tensor:
        """The push of every row on every answer [R, Q], by the cheaper of the two ways.

        The choice follows from the sizes alone, so a repeated step is computed in the same way.
        """
        V, D = self.residuals.W.shape
        num_rows, num_answers = len(self.row_bounds) - 1, len(self.answer_bounds) - 1
        reads = min(self._token_reads()) + num_rows * num_answers
        kernel_cost = self.num_trained * self.num_heldout * (V + D)
        use_matrices = V * D * reads < kernel_cost
        return self._by_matrices() if use_matrices else self._by_kernel()

    def strongest_tokens(
        self, by_row_RQ: NDArray[np.floating], answers: Sequence[int]
    ) -> StrongestTokens:
        """The tokens that push hardest in the rows that raise and lower each answer most."""
        columns: list[tuple[int, int, NDArray[np.int64], NDArray[np.float32]]] = []
        for answer in answers:
            order = np.argsort(by_row_RQ[:, answer], kind="stable")
            for row in np.unique(np.r_[order[:STRONGEST_ROWS], order[-STRONGEST_ROWS:]]).tolist():
                pushes_T = self._token_pushes(row, answer).float().cpu().numpy()
                top = np.argsort(-np.abs(pushes_T), kind="stable")[:STRONGEST_TOKENS]
                columns.append((answer, row, top, pushes_T[top]))
        counts = [len(top) for _, _, top, _ in columns]
        return StrongestTokens(
            answers=np.repeat(np.array([answer for answer, *_ in columns], np.int32), counts),
            rows=np.repeat(np.array([row for _, row, *_ in columns], np.int32), counts),
            positions=_concatenate([top for *_, top, _ in columns]).astype(np.int32),
            pushes=_concatenate([pushes for *_, pushes in columns]).astype(np.float32),
        )

    # -- the sums ------------------------------------------------------------------------------

    def _sums_by_sign(self) -> tuple[Tensor, Tensor]:
        """Pushes on every held-out token [J, 2], of all trained tokens and of equal ones."""
        # A held-out token has no advantage, so it pushes neither itself nor any other.
        pulls = self.weights.clone()
        pulls[self.num_trained :] = 0
        coupling_sums = CouplingSums(self.residuals, pulls)
        M = coupling_sums.signed_matrix(coupling_sums.chunks(np.arange(self.num_trained)))
        signed_J2 = torch.cat(
            [
                coupling_sums.apply_matrix(M, R, H)
                for _, R, H in self._chunks(self.num_trained, len(self.residuals))
            ]
        )
        token_N = self.residuals.tokens.cpu().numpy().astype(np.int64)
        heldout_types = np.unique(token_N[self.num_trained :])
        subset = np.flatnonzero(np.isin(token_N, heldout_types))
        sets = coupling_sums.lay_out_sets(token_N, coupling_sums.break_even_size, subset)
        (by_equal_tokens,) = coupling_sums.sums_within(sets, (token_N,))
        same_token_J2 = by_equal_tokens[self.num_trained : -1]  # the last row is padding
        return coupling_sums.advantage_scale * signed_J2, (
            coupling_sums.advantage_scale * same_token_J2
        )

    def _pushes_on_sets(self, sets: Sequence[Sequence[int]]) -> Tensor:
        """The push of every trained token on the mean answer of each set: [N, C]."""
        V, D = self.residuals.W.shape
        M = self.weights.new_zeros(V, len(sets) * D)
        for M_set, answers in zip(M.split(D, dim=1), sets, strict=True):
            for answer in answers:
                start, end = self.answer_bounds[answer : answer + 2].tolist()
                M_set += self._matrix(start, end) / len(answers)
        pushes_NC = [
            ((wide_R @ M).view(len(H), len(sets), D) * wide_H[:, None]).sum(dim=-1)
            for _, R, H in self._chunks(0, self.num_trained)
            for wide_R, wide_H in [(R.to(M.dtype), H.to(M.dtype))]
        ]
        return torch.cat(pushes_NC) * self.weights[: self.num_trained, None]

    def _by_matrices(self) -> Tensor:
        """<M_i, M_q> of all rows and answers [R, Q], a block of matrices at a time."""
        reads_by_rows, reads_by_answers = self._token_reads()
        products = []
        if reads_by_rows < reads_by_answers:
            for row_block in self._matrix_blocks(self.row_bounds):
                answer_blocks = self._matrix_blocks(self.answer_bounds)
                products.append(torch.cat([row_block @ block.mT for block in answer_blocks], dim=1))
            return self.scale * torch.cat(products)
        for answer_block in self._matrix_blocks(self.answer_bounds):
            row_blocks = self._matrix_blocks(self.row_bounds)
            products.append(torch.cat([block @ answer_block.mT for block in row_blocks]))
        return self.scale * torch.cat(products, dim=1)

    def _by_kernel(self) -> Tensor:
        """The same from the kernel of trained and held-out tokens, in blocks."""
        sums_QN = self.weights.new_zeros(len(self.answer_bounds) - 1, self.num_trained)
        # A block of the kernel may be no larger than a chunk of residuals.
        kernel_values = chunk_bytes(self.residuals.device) // self.weights.element_size()
        width = math.isqrt(kernel_values)
        for heldout, R_J, H_J in self._chunks(self.num_trained, len(self.residuals), width):
            bounds_in_chunk = self.answer_bounds.clip(heldout.start, heldout.stop)
            for trained, R, H in self._chunks(0, self.num_trained, width):
                K_JN = accurate_product(R_J, R.mT) * accurate_product(H_J, H.mT)
                sums_QN[:, trained] += self._sum_sets(K_JN.to(sums_QN.dtype), bounds_in_chunk)
        sums_NQ = (sums_QN * self.weights[: self.num_trained]).mT
        return self.scale * self._sum_sets(sums_NQ, self.row_bounds)

    def _sum_sets(self, values_N: Tensor, bounds: NDArray[np.int64]) -> Tensor:
        """Sums over the sets of tokens between these bounds, in a fixed order, also on a GPU."""
        lengths = self.residuals.to_device(np.diff(bounds))
        return torch.segment_reduce(values_N.contiguous(), "sum", lengths=lengths, unsafe=True)

    def _token_pushes(self, row: int, answer: int) -> Tensor:
        """The push of every token of a row on an answer: [T]."""
        start, end = self.row_bounds[row : row + 2].tolist()
        pushes_T = self.weights.new_zeros(end - start)
        for _, R_q, H_q in self._chunks(*self.answer_bounds[answer : answer + 2].tolist()):
            for chunk, R, H in self._chunks(start, end):
                K = accurate_product(R, R_q.mT) * accurate_product(H, H_q.mT)
                pushes_T[chunk.start - start : chunk.stop - start] += K.sum(dim=1)
        return self.scale * self.weights[start:end] * pushes_T

    # -- matrices and chunks -------------------------------------------------------------------

    def _token_reads(self) -> tuple[int, int]:
        """Tokens that enter a matrix if blocks of rows, or of answers, are the outer loop.

        The matrices of the inner loop are computed again for every block of the outer one.
        """
        row_blocks, answer_blocks = (
            -(-(len(bounds) - 1) // self._matrices_per_block)
            for bounds in (self.row_bounds, self.answer_bounds)
        )
        return (
            self.num_trained + self.num_heldout * row_blocks,
            self.num_heldout + self.num_trained * answer_blocks,
        )

    @property
    def _matrices_per_block(self) -> int:
        V, D = self.residuals.W.shape
        matrix_bytes = V * D * self.weights.element_size()
        return max(1, chunk_bytes(self.residuals.device) // matrix_bytes)

    def _matrix_blocks(self, bounds: NDArray[np.int64]) -> Iterator[Tensor]:
        """M of every set between two bounds, flattened, [n, V D] at a time."""
        V, D = self.residuals.W.shape
        for first in range(0, len(bounds) - 1, self._matrices_per_block):
            block_bounds = bounds[first : first + self._matrices_per_block + 1].tolist()
            block = self.weights.new_empty(len(block_bounds) - 1, V * D)
            for M, start, end in zip(block, block_bounds[:-1], block_bounds[1:], strict=True):
                M.copy_(self._matrix(start, end).flatten())
            yield block

    def _matrix(self, start: int, end: int) -> Tensor:
        """-M of the tokens from `start` to `end`, [V, D]: R holds -r.

        Every use multiplies by another -M or -r, so the sign does not matter.
        """
        M = self.weights.new_zeros(self.residuals.W.shape)
        for chunk, R, H in self._chunks(start, end):
            weighted_states = (self.weights[chunk, None] * H).to(H.dtype)
            M += accurate_product(R.mT, weighted_states)
        return M

    def _chunks(
        self, start: int, end: int, width: int | None = None
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(slice, R, H) of the tokens from `start` to `end`, at most a chunk or `width` at once."""
        size = min(self.residuals.chunk_size, width or self.residuals.chunk_size)
        return self.residuals.iterate_range(start, end, size)


def _concatenate(arrays: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    return np.concatenate(arrays) if arrays else np.empty(0)
