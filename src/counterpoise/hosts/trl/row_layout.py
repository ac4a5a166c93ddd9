"""Spread a step's rows over passes and processes. It affects memory and speed, not the gradient.

TRL runs an optimizer step as `passes` forward passes on each of `processes` processes. Rows are
sorted by length and cut into passes, then dealt to the processes, so that a pass has little padding
and no process waits long. Sizes differ by at most one row; where a step has fewer rows than passes
times processes, some stay empty.
"""

from __future__ import annotations

from collections.abc import Sequence


def lay_out_step(
    step: Sequence[int], lengths_R: Sequence[int], passes: int, processes: int
) -> list[list[list[int]]]:
    """[pass][process] -> rows.

    Example:
        >>> lay_out_step([0, 1, 2, 3], [9, 2, 8, 3], passes=2, processes=1)
        [[[0, 2]], [[3, 1]]]
    """
    # Longest first; equal lengths by index, so that every process computes the same layout.
    order = sorted(step, key=lambda row: (-lengths_R[row], row))
    size, remainder = divmod(len(order), passes)
    layout, first_row = [], 0
    for pass_index in range(passes):
        last_row = first_row + size + (pass_index < remainder)
        layout.append(
            [order[first_row:last_row][process::processes] for process in range(processes)]
        )
        first_row = last_row
    return layout
