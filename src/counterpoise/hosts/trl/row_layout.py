"""A step's rows over passes and processes: memory and speed only, never the gradient.

TRL runs an optimizer step as `passes` forward passes on each of `processes` processes. Rows are
sorted by length and cut into passes, then dealt to the processes, so that a pass pads little and
no process waits long. Sizes differ by at most one row; a step with fewer rows than places leaves
places empty.
"""

from __future__ import annotations

from collections.abc import Sequence


def lay_out(
    step: Sequence[int], lengths_R: Sequence[int], passes: int, processes: int
) -> list[list[list[int]]]:
    """[pass][process] -> rows.

    Example:
        >>> lay_out([0, 1, 2, 3], [9, 2, 8, 3], passes=2, processes=1)
        [[[0, 2]], [[3, 1]]]
    """
    order = sorted(step, key=lambda i: (-lengths_R[i], i))
    size, more = divmod(len(order), passes)
    cut, start = [], 0
    for a in range(passes):
        end = start + size + (a < more)
        cut.append([order[start:end][p::processes] for p in range(processes)])
        start = end
    return cut
