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
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.model.coupling_sums import HALF_PRECISION_PEAK, CouplingSums
from counterpoise.model.memory_share import allowed_bytes
from counterpoise.model.residuals import (
    ALIGN,
    HALF_DTYPES,
    Residuals,
    accurate_product,
    chunk_bytes,
)

HALF_MATRIX_PEAK = 32768.0  # bound on the entries of an M in half precision: float16 ends at 65504
SMALLEST_PEAK = 1e-30  # of a matrix; a smaller one is taken as 0
PRODUCT_SPLITS = {"cpu": 1, "cuda": 256}  # pieces of an inner product of two matrices
STRONGEST_ROWS = 2  # rows in each direction whose tokens are stored for an answer
STRONGEST_TOKENS = 6  # tokens stored of each of these rows


@dataclass(frozen=True, slots=True, eq=False)
class HeldoutSums:
    """The sums of a step, on the device of the model."""

    signed_J2: Tensor  # push of tokens with a positive and with a negative pull
    same_token_J2: Tensor  # the part of it that comes from equal tokens
    by_row_RQ: Tensor
    on_sets_NC: Tensor  # push of every trained token on an answer, mean over those of each set


@dataclass(frozen=True, slots=True, eq=False)
class StrongestTokens:
    """The strongest tokens of the strongest rows, an entry for each token; on the CPU."""

    answers: NDArray[np.int32]
    rows: NDArray[np.int32]
    positions: NDArray[np.int32]
    pushes: NDArray[np.float32]


class MatrixBlock(NamedTuple):
    """M of several sets of tokens, in the precision of the residuals."""

    values: Tensor  # [n, V D and padding]
    scales: Tensor  # [n], what the values were divided by


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
        # A held-out token has no advantage, so it pushes neither itself nor any other.
        self.host_pulls = torch.cat((pulls_N.cpu(), pulls_N.new_zeros(self.num_heldout).cpu()))
        pulls = residuals.to_device(pulls_N).to(residuals.sum_dtype)
        # Pulls are averages over the tokens of a step, too small for half precision: scaled to 1.
        pull_scale = pulls.abs().max().clamp(min=torch.finfo(residuals.sum_dtype).tiny)
        self.step_scale, self.scale = scale, scale * pull_scale
        self.weights = torch.cat((pulls / pull_scale, pulls.new_ones(self.num_heldout)))

    @torch.no_grad()
    def sums(self, sets: Sequence[Sequence[int]]) -> HeldoutSums:
        """All sums; `sets` are lists of answers."""
        # The last of them sorts tokens on the host, while a GPU still works on the others.
        by_row_RQ, on_sets_NC = self.pushes_by_row(), self.pushes_on_sets(sets)
        signed_J2, same_token_J2 = self.sums_by_sign()
        return HeldoutSums(signed_J2, same_token_J2, by_row_RQ, on_sets_NC)

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
        places: list[tuple[int, int]] = []  # (answer, row)
        pushes: list[Tensor] = []  # of all tokens of the rows of one answer
        for answer in answers:
            order = np.argsort(by_row_RQ[:, answer], kind="stable")
            rows = np.unique(np.r_[order[:STRONGEST_ROWS], order[-STRONGEST_ROWS:]])
            places += [(answer, row) for row in rows.tolist()]
            pushes.append(self._token_pushes(rows, answer))
        # One copy for all answers: the GPU works on while Python goes through them.
        host_pushes = _concatenate([torch.cat(pushes).float().cpu().numpy()] if pushes else [])
        row_lengths = np.diff(self.row_bounds)[[row for _, row in places]]
        pushes_by_place = np.split(host_pushes, np.cumsum(row_lengths)[:-1])
        top_by_place = [
            np.argsort(-np.abs(pushes_T), kind="stable")[:STRONGEST_TOKENS]
            for pushes_T in pushes_by_place
        ]
        counts = [len(top) for top in top_by_place]
        answers_and_rows = np.repeat(np.array(places, np.int32).reshape(-1, 2), counts, axis=0)
        return StrongestTokens(
            answers=answers_and_rows[:, 0],
            rows=answers_and_rows[:, 1],
            positions=_concatenate(top_by_place).astype(np.int32),
            pushes=_concatenate(
                [pushes_T[top] for pushes_T, top in zip(pushes_by_place, top_by_place, strict=True)]
            ).astype(np.float32),
        )

    # -- the sums ------------------------------------------------------------------------------

    def sums_by_sign(self) -> tuple[Tensor, Tensor]:
        """Pushes on every held-out token [J, 2], of all trained tokens and of equal ones."""
        coupling_sums = CouplingSums(self.residuals, self.host_pulls)
        M = coupling_sums.signed_matrix(coupling_sums.chunks(np.arange(self.num_trained)))
        signed_J2 = torch.cat(
            [
                coupling_sums.apply_matrix(M, R, H)
                for _, R, H in self._chunks(self.num_trained, len(self.residuals))
            ]
        )
        token_N = self.residuals.host_tokens
        heldout_types = np.unique(token_N[self.num_trained :])
        subset = np.flatnonzero(np.isin(token_N, heldout_types))
        sets = coupling_sums.lay_out_sets(token_N, coupling_sums.break_even_size, subset)
        (by_equal_tokens,) = coupling_sums.sums_within(sets, (token_N,))
        same_token_J2 = by_equal_tokens[self.num_trained : -1]  # the last row is padding
        scale = self.step_scale * coupling_sums.advantage_scale
        return scale * signed_J2, scale * same_token_J2

    def pushes_on_sets(self, sets: Sequence[Sequence[int]]) -> Tensor:
        """The push of every trained token on an answer, mean over those of each set: [N, C]."""
        M = self._set_matrices(sets)
        scale_C = self.weights.new_ones(len(sets))
        if self._is_half:
            # In half precision for a GPU's fast products, far from overflow in float16.
            scale_C = M.abs().amax(dim=(0, 2)).clamp(min=SMALLEST_PEAK) / HALF_PRECISION_PEAK
            M = (M / scale_C[:, None]).to(self.residuals.precision)
        pushes_NC = [
            (accurate_product(R, M.flatten(1)).view(len(H), *M.shape[1:]) * H[:, None]).sum(dim=-1)
            for _, R, H in self._chunks(0, self.num_trained)
        ]
        return self.scale * torch.cat(pushes_NC) * scale_C * self.weights[: self.num_trained, None]

    def _set_matrices(self, sets: Sequence[Sequence[int]]) -> Tensor:
        """The mean M of the answers of each set, up to the sign: [V, C, D]."""
        V, D = self.residuals.W.shape
        M_VCD = self.weights.new_zeros(V, len(sets), D)
        for M, answers in zip(M_VCD.unbind(1), sets, strict=True):
            bounds = [self.answer_bounds[answer : answer + 2] for answer in answers]
            tokens = _concatenate([np.arange(*start_and_end) for start_and_end in bounds])
            for indices in self.residuals.to_device(tokens.astype(np.int64)).split(
                self.residuals.chunk_size
            ):
                if len(indices):
                    R, H = self.residuals.gather(indices)
                    M += accurate_product(R.mT, (H / len(answers)).to(H.dtype))
        return M_VCD

    def _by_matrices(self) -> Tensor:
        """<M_i, M_q> of all rows and answers [R, Q].

        A large block of the one kind stays in memory while all of the other go by.
        """
        reads_by_rows, reads_by_answers = self._token_reads()
        outer, inner = self.answer_bounds, self.row_bounds
        if reads_by_rows < reads_by_answers:
            outer, inner = inner, outer
        products = []
        for outer_block in self._matrix_blocks(outer, self._stored_matrices):
            inner_blocks = self._matrix_blocks(inner, self._matrices_per_block)
            products.append(torch.cat([_inner_products(outer_block, b) for b in inner_blocks], 1))
        by_outer = torch.cat(products)
        return self.scale * (by_outer if outer is self.row_bounds else by_outer.mT)

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

    def _token_pushes(self, rows: NDArray[np.int64], answer: int) -> Tensor:
        """The push of every token of some rows on an answer: [T of all rows]."""
        tokens = np.concatenate(
            [np.arange(*self.row_bounds[row : row + 2]) for row in rows.tolist()]
        )
        token_indices = self.residuals.to_device(tokens)
        pushes = self.weights.new_zeros(len(tokens))
        for _, R_q, H_q in self._chunks(*self.answer_bounds[answer : answer + 2].tolist()):
            for chunk_pushes, indices in zip(
                pushes.split(self.residuals.chunk_size),
                token_indices.split(self.residuals.chunk_size),
                strict=True,
            ):
                R, H = self.residuals.gather(indices)
                K = accurate_product(R, R_q.mT) * accurate_product(H, H_q.mT)
                chunk_pushes += K.sum(dim=1)
        return self.scale * self.weights[token_indices] * pushes

    # -- matrices and chunks -------------------------------------------------------------------

    def _token_reads(self) -> tuple[int, int]:
        """Tokens that enter a matrix if blocks of rows, or of answers, are the outer loop.

        The matrices of the inner loop are computed again for every block of the outer one.
        """
        row_blocks, answer_blocks = (
            -(-(len(bounds) - 1) // self._stored_matrices)
            for bounds in (self.row_bounds, self.answer_bounds)
        )
        return (
            self.num_trained + self.num_heldout * row_blocks,
            self.num_heldout + self.num_trained * answer_blocks,
        )

    @property
    def _is_half(self) -> bool:
        return self.residuals.precision in HALF_DTYPES

    @property
    def _matrix_size(self) -> int:
        """V D, with padding to a multiple of what `_inner_products` sums at once."""
        V, D = self.residuals.W.shape
        splits = PRODUCT_SPLITS[self.residuals.device.type]
        step = ALIGN * splits if splits > 1 else 1
        return -(-V * D // step) * step

    @property
    def _matrices_per_block(self) -> int:
        return self._matrices_in(chunk_bytes(self.residuals.device))

    @property
    def _stored_matrices(self) -> int:
        """Matrices that stay in memory while all others go by."""
        return self._matrices_in(stored_bytes(self.residuals.device))

    def _matrices_in(self, num_bytes: int) -> int:
        return max(1, num_bytes // (self._matrix_size * self.residuals.W.element_size()))

    def _matrix_blocks(self, bounds: NDArray[np.int64], size: int) -> Iterator[MatrixBlock]:
        """-M of every set between two bounds, `size` of them at a time: R holds -r.

        Every use multiplies by another -M or -r, so the sign does not matter.
        """
        for start in range(0, len(bounds) - 1, size):
            yield self._matrices(bounds[start : start + size + 1])

    def _matrices(self, bounds: NDArray[np.int64]) -> MatrixBlock:
        V, D = self.residuals.W.shape
        values = self.residuals.W.new_zeros(len(bounds) - 1, self._matrix_size)
        scales = self._matrix_scales(bounds)
        lengths = self.residuals.to_device(np.diff(bounds))
        num_tokens = int(bounds[-1] - bounds[0])
        token_scales = scales.repeat_interleave(lengths, output_size=num_tokens)
        weights = self.weights[bounds[0] : bounds[-1]] / token_scales
        for sets, chunk, R, H in self._set_chunks(bounds):
            chunk_weights = weights[chunk.start - bounds[0] : chunk.stop - bounds[0], None]
            weighted_states = (chunk_weights * H).to(H.dtype)
            for index in sets:
                start, end = bounds[index : index + 2].clip(chunk.start, chunk.stop) - chunk.start
                M = values[index, : V * D].view(V, D)
                if bounds[index] >= chunk.start:
                    torch.mm(R[start:end].mT, weighted_states[start:end], out=M)
                else:
                    M.addmm_(R[start:end].mT, weighted_states[start:end])
        return MatrixBlock(values, scales)

    def _matrix_scales(self, bounds: NDArray[np.int64]) -> Tensor:
        """What the M of each set is divided by, so that no entry overflows in float16."""
        if not self._is_half:
            return self.weights.new_ones(len(bounds) - 1)
        # No entry of r is above 1, so no entry of M is above the sum over tokens of |c| max |h|.
        tokens = slice(*bounds[[0, -1]].tolist())
        largest_states = torch.linalg.vector_norm(
            self.residuals.hidden[tokens], ord=torch.inf, dim=1, dtype=self.weights.dtype
        )
        peaks = self._sum_sets(self.weights[tokens].abs() * largest_states, bounds)
        return peaks.clamp(min=SMALLEST_PEAK) / HALF_MATRIX_PEAK

    def _set_chunks(
        self, bounds: NDArray[np.int64]
    ) -> Iterator[tuple[range, slice, Tensor, Tensor]]:
        """(sets, slice of tokens, R, H): as many whole sets as fit into a chunk, or a piece of one.

        `sets` are indices of `bounds`.
        """
        first, num_sets = 0, len(bounds) - 1
        while first < num_sets:
            chunk_end = bounds[first] + self.residuals.chunk_size
            last = max(first + 1, int(np.searchsorted(bounds, chunk_end, side="right")) - 1)
            for chunk, R, H in self._chunks(int(bounds[first]), int(bounds[last])):
                yield range(first, last), chunk, R, H
            first = last

    def _chunks(
        self, start: int, end: int, width: int | None = None
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(slice, R, H) of the tokens from `start` to `end`, at most a chunk or `width` at once."""
        size = min(self.residuals.chunk_size, width or self.residuals.chunk_size)
        return self.residuals.iterate_range(start, end, size)


def stored_bytes(device: torch.device) -> int:
    """Bytes of matrices that stay in memory: on a GPU an eighth of what we may take of it."""
    if device.type != "cuda":
        return chunk_bytes(device)
    return allowed_bytes(torch.cuda.get_device_properties(device).total_memory) // 8


def _inner_products(a: MatrixBlock, b: MatrixBlock) -> Tensor:
    """<M_i, M_j> of all matrices of two blocks: [n, m]."""
    # The sum over V D entries is so long, and the result so small, that a single product would
    # leave most of a GPU idle: it is summed in pieces.
    splits = PRODUCT_SPLITS[a.values.device.type]
    pieces_a, pieces_b = (block.values.view(len(block.values), splits, -1) for block in (a, b))
    products = accurate_product(pieces_a.transpose(0, 1), pieces_b.permute(1, 2, 0)).sum(dim=0)
    return products * a.scales[:, None] * b.scales


def _concatenate(arrays: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    return np.concatenate(arrays) if arrays else np.empty(0)
