"""Which rows of an optimizer step are measured, and where their tokens are.

Three index spaces meet here: rows of the step; its N tokens, row after row; and the n tokens of the
measured rows, in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from counterpoise.model.scoring import micro_batches
from counterpoise.types import Row

TokenIndices = NDArray[np.int64]
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """The rows of a step and the measured ones among them.

    Example:
        measured = MeasuredRows(step_rows, measured_rows=[0, 2])      # of 3, 5 and 2 tokens
        measured.token_indices                                        # [0, 1, 2, 8, 9]
        measured.to_measured(np.array([2, 8]))                        # [2, 3]
    """

    step_rows: Sequence[Row]
    measured_rows: Sequence[int]  # indices of `step_rows`, ascending

    @property
    def rows(self) -> list[Row]:
        """The measured rows themselves."""
        return self.select(self.step_rows)

    def select(self, values: Sequence[ValueT]) -> list[ValueT]:
        """`values` has one entry for each row of the step: return those of the measured rows."""
        return [values[index] for index in self.measured_rows]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row of the step."""
        return [row.num_tokens for row in self.step_rows]

    @property
    def all_measured(self) -> bool:
        return len(self.measured_rows) == len(self.step_rows)

    @cached_property
    def token_indices(self) -> TokenIndices:
        """The tokens of the measured rows, among the N: [n]."""
        is_measured_R = np.zeros(len(self.step_rows), dtype=bool)
        is_measured_R[list(self.measured_rows)] = True
        return np.flatnonzero(np.repeat(is_measured_R, self.lengths))

    def tokens_of_groups(self, groups: Collection[str]) -> TokenIndices:
        """The tokens, among the N, of the measured rows of these groups."""
        measured_rows = set(self.measured_rows)
        is_chosen_R = [
            index in measured_rows and row.group in groups
            for index, row in enumerate(self.step_rows)
        ]
        return np.flatnonzero(np.repeat(is_chosen_R, self.lengths))

    def to_measured(self, indices_N: TokenIndices) -> TokenIndices:
        """Convert indices among the N tokens into indices among the n; all are of measured rows."""
        return np.searchsorted(self.token_indices, indices_N)

    def micro_batches(self, _rows: Sequence[Row], micro_tokens: int) -> Iterator[list[int]]:
        """The measured rows of each of the step's own micro-batches, as indices of `rows`.

        `score_tokens` calls it in place of its own split, which would group the measured rows
        alone: another grouping changes the rounding, and so the displacement.
        """
        place = {index: number for number, index in enumerate(self.measured_rows)}
        for batch in micro_batches(self.step_rows, micro_tokens):
            if members := [place[index] for index in batch if index in place]:
                yield members
