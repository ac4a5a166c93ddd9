"""Read the arrays of another trainer's loop: lists, numpy arrays or torch tensors.

Nothing here imports torch: a caller that passes a tensor has imported it already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import PoiseError, first_line

if TYPE_CHECKING:
    from torch import Tensor

ArrayLike: TypeAlias = "Sequence[Any] | NDArray[Any] | Tensor"


def is_tensor(values: object) -> TypeGuard[Tensor]:
    """Whether the values are a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def to_numpy(argument: str, values: ArrayLike) -> NDArray[Any]:
    """The values as numbers in a numpy array; `argument` is its name, for errors."""
    try:
        if is_tensor(values):
            # numpy has no bfloat16, so floating-point tensors are widened first.
            widened = values.detach().double() if values.is_floating_point() else values
            return widened.cpu().numpy()
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as fault:
        raise PoiseError(f"{argument} is not an array of numbers: {first_line(fault)}") from fault
    if array.dtype.kind not in "biuf" and array.size:
        raise PoiseError(f"{argument} is not an array of numbers: its type is {array.dtype}")
    return array


def to_row_values(argument: str, values: ArrayLike) -> NDArray[np.float64]:
    """One finite number for each row: [R]."""
    values_R = to_numpy(argument, values).astype(np.float64)
    if values_R.ndim != 1:
        raise PoiseError(
            f"{argument} needs one number for each row, [R], not {list(values_R.shape)}"
        )
    if not np.isfinite(values_R).all():
        row = int(np.flatnonzero(~np.isfinite(values_R))[0])
        raise PoiseError(f"{argument} must be finite, but row {row} has {values_R[row]}")
    return values_R


def to_group_numbers(groups: ArrayLike | int, num_rows: int) -> NDArray[np.int64]:
    """The number of each row's group [R], counted in the order in which groups first occur.

    `groups` has one entry for each row, equal for the rows of a prompt, or is the number of
    consecutive rows that share a prompt, which is how TRL orders them.

    Example:
        >>> to_group_numbers(["b", "a", "b", "a"], 4), to_group_numbers(2, 4)
        (array([0, 1, 0, 1]), array([0, 0, 1, 1]))
    """
    if isinstance(groups, int | np.integer):
        if groups < 1 or num_rows % groups:
            raise PoiseError(f"groups: {num_rows} rows are not whole groups of {groups}")
        return np.arange(num_rows, dtype=np.int64) // groups
    group_numbers: dict[Any, int] = {}
    try:
        labels = [_plain_value(label) for label in _plain_value(groups)]
        group_R = np.array(
            [group_numbers.setdefault(label, len(group_numbers)) for label in labels], np.int64
        )
    except TypeError as fault:
        raise PoiseError(f"groups needs one number or name for each row, [R]: {fault}") from fault
    if len(group_R) != num_rows:
        raise PoiseError(f"groups has {len(group_R)} entries for {num_rows} rows")
    return group_R


def _plain_value(values: Any) -> Any:
    """The numbers of a tensor or an array, even of a single one; anything else as it is.

    As keys of a dictionary, tensors are equal only to themselves.
    """
    return values.tolist() if is_tensor(values) or isinstance(values, np.ndarray) else values
