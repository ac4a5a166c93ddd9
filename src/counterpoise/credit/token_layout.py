"""Split the per-token arrays of a caller into rows, and give weights back in the same layout.

rows      a list with one array for each rollout: [T], or [T, D] for hidden states
padded    arrays [R, T] and [R, T, D] together with `mask` [R, T], true at trained tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.array_inputs import ArrayLike, is_tensor, to_numpy
from counterpoise.errors import PoiseError
from counterpoise.types import Floats


class TokenLayout:
    """How the caller lays out tokens: a list of rows, or padded arrays with a mask."""

    def __init__(self, num_rows: int, mask: ArrayLike | None) -> None:
        self.num_rows, self.mask = num_rows, mask
        self._length_argument = "mask"  # the one that decided the lengths
        self._lengths_R: list[int] | None = None
        self._mask_RT: NDArray[np.bool_] | None = None
        if mask is not None:
            self._mask_RT = to_numpy("mask", mask).astype(bool)
            if self._mask_RT.ndim != 2 or len(self._mask_RT) != num_rows:
                shape = list(self._mask_RT.shape)
                raise PoiseError(f"mask has the shape {shape}, not [R, T] with {num_rows} rows")
            self._lengths_R = self._mask_RT.sum(axis=1).tolist()

    @property
    def lengths_R(self) -> list[int]:
        """Tokens of each row."""
        if self._lengths_R is None:
            raise PoiseError("weights: pass mask, or tokens, for the lengths of the rows")
        return self._lengths_R

    def split_numbers(self, argument: str, values: ArrayLike) -> list[NDArray[Any]]:
        """One array [T] for each row: int32 for tokens, else float32."""
        if self._mask_RT is not None:
            values_RT = to_numpy(argument, values)
            self._check_padded(argument, values_RT.shape, 2)
            values_and_mask = zip(values_RT, self._mask_RT, strict=True)
            row_values = [values_T[mask_T] for values_T, mask_T in values_and_mask]
        else:
            row_values = [to_numpy(argument, values_T) for values_T in _to_list(argument, values)]
            self._check_rows(argument, [values_T.shape for values_T in row_values], 1)
        for i, values_T in enumerate(row_values):
            if argument == "tokens" and values_T.dtype.kind not in "iu" and values_T.size:
                raise PoiseError(f"tokens must be whole numbers, not {values_T.dtype}")
            if not np.isfinite(values_T).all():
                raise PoiseError(f"{argument} must be finite, but row {i} has a nan or an infinity")
        return [
            values_T.astype(np.int32 if argument == "tokens" else np.float32)
            for values_T in row_values
        ]

    def split_states(self, hidden: ArrayLike) -> list[Tensor]:
        """Hidden states [T, D] for each row, on the device they are on."""
        if self._mask_RT is not None:
            hidden_RT = to_state_tensor("hidden", hidden)
            self._check_padded("hidden", hidden_RT.shape, 3)
            flat_N = hidden_RT[torch.from_numpy(self._mask_RT).to(hidden_RT.device)]
            row_states = list(flat_N.split(self.lengths_R))
        else:
            row_states = [
                to_state_tensor("hidden", states_T) for states_T in _to_list("hidden", hidden)
            ]
            self._check_rows("hidden", [tuple(states_T.shape) for states_T in row_states], 2)
        if len({states_T.shape[1] for states_T in row_states}) > 1:
            raise PoiseError("hidden: the rows have states of different sizes")
        if not all(bool(torch.isfinite(states_T).all()) for states_T in row_states):
            raise PoiseError("hidden must be finite, but has a nan or an infinity")
        return row_states

    def join(self, weights_by_row: Sequence[Floats]) -> list[Floats] | Floats | Tensor:
        """The weights in the caller's layout."""
        if self._mask_RT is None:
            return list(weights_by_row)
        weights_RT = np.zeros(self._mask_RT.shape, dtype=np.float32)
        for row_T, mask_T, weights_T in zip(weights_RT, self._mask_RT, weights_by_row, strict=True):
            row_T[mask_T] = weights_T
        mask = self.mask
        return torch.from_numpy(weights_RT).to(mask.device) if is_tensor(mask) else weights_RT

    def _check_padded(self, argument: str, shape: Sequence[int], num_axes: int) -> None:
        assert self._mask_RT is not None
        if len(shape) != num_axes or tuple(shape[:2]) != self._mask_RT.shape:
            raise PoiseError(
                f"{argument} has the shape {list(shape)}, which does not fit a mask of "
                f"{list(self._mask_RT.shape)}"
            )

    def _check_rows(self, argument: str, shapes: Sequence[Sequence[int]], num_axes: int) -> None:
        if len(shapes) != self.num_rows:
            raise PoiseError(
                f"{argument} has {len(shapes)} rows, but advantages has {self.num_rows}"
            )
        if any(len(shape) != num_axes for shape in shapes):
            expected = "[T, D]" if num_axes == 2 else "[T]"
            raise PoiseError(
                f"{argument} needs an array {expected} for each row, or a mask beside it"
            )
        lengths_R = [shape[0] for shape in shapes]
        if self._lengths_R is None:
            self._length_argument, self._lengths_R = argument, lengths_R
        for i, (length, expected_length) in enumerate(zip(lengths_R, self._lengths_R, strict=True)):
            if length != expected_length:
                raise PoiseError(
                    f"row {i} has {length} tokens in {argument}, but {expected_length} in "
                    f"{self._length_argument}"
                )


def to_state_tensor(argument: str, values: ArrayLike) -> Tensor:
    """Hidden states or an unembedding as a tensor of floating-point numbers without gradients."""
    tensor = (
        values.detach()
        if is_tensor(values)
        else torch.from_numpy(np.ascontiguousarray(to_numpy(argument, values)))
    )
    return tensor if tensor.is_floating_point() else tensor.float()


def _to_list(argument: str, values: ArrayLike) -> list[Any]:
    try:
        return list(values)
    except TypeError as fault:
        raise PoiseError(f"{argument} needs one array for each row: {fault}") from fault
