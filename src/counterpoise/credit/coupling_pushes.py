"""How strongly the tokens of a batch push each other through the output layer.

    push_j(S) = sum_{k in S} c_k K_jk,     K_jk = <h_j, h_k> <r_j, r_k>,     r = e_o - pi

This is eq. 9 of arXiv:2605.08666. c_k is a coefficient that the caller chooses for token k, such as
its advantage. S is the token itself, its row, its group or the whole batch; each set contains the
previous one. Pushes are summed separately over tokens k with positive and with negative c: [N, 2].
The difference of two sets is what lies between them: `by_batch - by_row` is what the other rollouts
do to a token.

The code that sums over sets is shared with the microscope (`microscope/coupling.py` explains the
cost): no [N, N] matrix is formed, and [N, V] only a chunk at a time. At temperature T every push
has a factor 1 / T^2, which is left out because callers only compare pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.view import CreditView
from counterpoise.model.coupling_sums import CouplingSums
from counterpoise.model.residuals import HALF_DTYPES, Residuals, residuals_at_temperature
from counterpoise.types import Floats, Row

SignedPushes = NDArray[np.float32]  # [N, 2]: from tokens with c > 0, from those with c < 0


@dataclass(frozen=True, slots=True, eq=False)
class TokenPushes:
    """Pushes on every response token of the view, row after row.

    Every set includes the token itself.

    Example:
        pushes = sum_pushes(view, [row.advantage for row in view.rows])
        (pushes.by_group - pushes.by_row).sum(axis=1)      # [N], from the group's other rollouts
        (pushes.by_group - pushes.by_itself)[:, 0]         # [N], from positive tokens of the group
    """

    by_itself: SignedPushes
    by_row: SignedPushes
    by_group: SignedPushes
    by_batch: SignedPushes | None  # None unless `include_batch`: the most expensive set
    rounding: float  # a difference of two sets below this share of the smaller one counts as 0


@torch.no_grad()
def sum_pushes(
    view: CreditView, coefficients_R: Sequence[float], *, include_batch: bool = False
) -> TokenPushes:
    """Sum the pushes on every token over its row, its group and, if asked for, the whole batch.

    `coefficients_R` holds the c that all tokens of a row share. The view needs at least one row.
    """
    lengths_R = [row.num_tokens for row in view.rows]
    row_N = np.repeat(np.arange(len(view.rows)), lengths_R).astype(np.int64)
    group_N = view.group_numbers_R[row_N]
    # One flat token axis over all rows; row and group numbers are the keys of the sets.
    c_N = torch.from_numpy(np.asarray(coefficients_R, np.float32)[row_N])
    coupling = CouplingSums(view_residuals(view), c_N)
    batch_matrix = (
        coupling.signed_matrix(coupling.chunks(np.arange(len(row_N)))) if include_batch else None
    )
    by_itself = coupling.zeros()
    by_batch = None if batch_matrix is None else coupling.zeros()

    def record_pushes(indices: Tensor, R: Tensor, H: Tensor, squares: Tensor) -> None:
        by_itself[indices] = coupling.A_N2[indices] * squares[..., None]
        if batch_matrix is not None and by_batch is not None:
            by_batch[indices] = coupling.apply_matrix(batch_matrix, R, H)

    # The matrix K of a group gives the sums by group and by row at once.
    group_sets = coupling.lay_out_sets(group_N, coupling.nested_break_even_size)
    by_group, by_row = coupling.sums_within(group_sets, (group_N, row_N), record_pushes)
    if group_sets.large_sets:  # no K was formed for these groups, so their row sums are missing
        row_sets = coupling.lay_out_sets(
            row_N, coupling.break_even_size, np.concatenate(group_sets.large_sets)
        )
        by_row += coupling.sums_within(row_sets, (row_N,))[0]

    def to_host(sums: Tensor) -> SignedPushes:
        pushes: SignedPushes = (sums[:-1] * coupling.advantage_scale).float().cpu().numpy()
        return pushes  # the last entry collects the padding of the layout and is dropped

    # Sums over nested sets differ by rounding alone where nothing lies between them.
    rounding = 2e-3 if coupling.residuals.precision in HALF_DTYPES else 1e-6
    return TokenPushes(
        by_itself=to_host(by_itself),
        by_row=to_host(by_row + by_itself),
        by_group=to_host(by_group + by_itself),
        by_batch=None if by_batch is None else to_host(by_batch),
        rounding=rounding,
    )


def view_residuals(view: CreditView) -> Residuals:
    """Residuals of every response token at the sampling temperature."""
    tokens = torch.from_numpy(np.concatenate(view.tokens).astype(np.int64))
    return residuals_at_temperature(
        torch.cat(view.hidden), view.unembedding, tokens, view.temperature, view.softcap
    )


def split_tokens(values_N: NDArray[np.floating], rows: Sequence[Row]) -> list[Floats]:
    """Split a flat array over all tokens into one array [T] per row."""
    row_ends = np.cumsum([row.num_tokens for row in rows])[:-1]
    return np.split(values_N.astype(np.float32), row_ends)
