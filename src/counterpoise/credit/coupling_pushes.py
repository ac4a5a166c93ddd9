"""How the tokens of a batch push each other through the output layer: eq. 9 by whose they are.

    push_j(S) = sum_{k in S} c_k K_jk,     K_jk = <h_j, h_k> <r_j, r_k>,     r = e_o - pi

for S the token itself, its row, its group and the whole batch, each contained in the next, and the
pushers of each set by the sign of their c: [N, 2]. What remains between two sets is their
difference: `batch - row` is what the other rollouts do to a token.

Sums over sets are the microscope's (`microscope/coupling.py` has the cost): no [N, N] is formed,
and of [N, V] a chunk at a time. At temperature T every push has a factor 1 / T^2, which is left
out: the methods that use this compare pushes.
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
from counterpoise.model.residuals import HALF_DTYPES, Residuals, wide
from counterpoise.types import Floats, Row

SignedPushes = NDArray[np.float32]  # [N, 2]: by tokens with c > 0, by those with c < 0


@dataclass(frozen=True, slots=True, eq=False)
class TokenPushes:
    """Every response token of the view, row after row; the token itself is in every set.

    Example:
        seen = pushed(view, [row.advantage for row in view.rows])
        (seen.batch - seen.row).sum(axis=1)      # [N], by the other rollouts
        (seen.group - seen.own)[:, 0]            # [N], by positive tokens of the group
    """

    by_token: SignedPushes
    by_row: SignedPushes
    by_group: SignedPushes
    by_batch: SignedPushes  # 0 unless asked for: it is what costs most
    rounding: float  # of two of them, relative to the larger: a difference below is none


@torch.no_grad()
def sum_pushes(
    view: CreditView, coefficients_R: Sequence[float], *, include_batch: bool = False
) -> TokenPushes:
    """`coefficients_R`: the c of every row, that of all its tokens. At least one row is needed."""
    lengths_R = [row.num_tokens for row in view.rows]
    row_N = np.repeat(np.arange(len(view.rows)), lengths_R).astype(np.int64)
    number: dict[str, int] = {}
    group_R = np.array([number.setdefault(row.group, len(number)) for row in view.rows])
    group_N = group_R[row_N].astype(np.int64)
    c_N = torch.from_numpy(np.asarray(coefficients_R, np.float32)[row_N])
    walk = CouplingSums(view_residuals(view), c_N)
    everything = walk.signed_matrix(walk.chunks(np.arange(len(row_N)))) if include_batch else None
    own, by_any = walk.zeros(), walk.zeros()

    def spread(places: Tensor, R: Tensor, H: Tensor, squares: Tensor) -> None:
        own[places] = walk.A_N2[places] * squares[..., None]
        if everything is not None:
            by_any[places] = walk.apply_matrix(everything, R, H)

    groups = walk.lay_out_sets(
        group_N, 4 * walk.break_even_size // 3 + walk.row_width
    )  # a kernel gives both sums
    by_group, by_row = walk.sums_within(groups, (group_N, row_N), spread)
    if groups.large_sets:  # no kernel was made from which rows could be taken
        rows = walk.lay_out_sets(row_N, walk.break_even_size, np.concatenate(groups.large_sets))
        by_row += walk.sums_within(rows, (row_N,))[0]
    found = torch.stack((own, by_row + own, by_group + own, by_any))[:, :-1] * walk.advantage_scale
    rounding = 2e-3 if walk.residuals.precision in HALF_DTYPES else 1e-6
    of_own, of_row, of_group, of_batch = found.float().cpu().numpy()
    return TokenPushes(of_own, of_row, of_group, of_batch, rounding)


def view_residuals(view: CreditView) -> Residuals:
    """r of every token as it was drawn: at the sampling temperature; half precision on a GPU."""
    W, hidden = view.policy.decoder.unembedding.detach(), torch.cat(view.hidden)
    assert view.reader is not None, "who has a policy has a reader"
    if view.reader.temperature != 1:
        W = wide(W) / view.reader.temperature
    tokens = np.concatenate([row.content.response_tokens for row in view.rows])
    half = hidden.is_cuda and hidden.dtype in HALF_DTYPES
    precision = torch.float16 if half else None
    return Residuals(hidden, W, torch.from_numpy(tokens.astype(np.int64)), precision=precision)


def split_tokens(values_N: NDArray[np.floating], rows: Sequence[Row]) -> list[Floats]:
    """Flat tokens -> per row [T]."""
    ends = np.cumsum([row.num_tokens for row in rows])[:-1]
    return np.split(values_N.astype(np.float32), ends)
