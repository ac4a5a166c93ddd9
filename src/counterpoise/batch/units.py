"""What a composer of whole groups must keep together: groups, and the trajectories that join them.

    unit    rows that share a group or a trajectory, and rows that share one with those, and so on

In most runs a rollout is one row and a unit is a group. An agent's trajectory is several model
calls, each a row with a prompt of its own, so rows of one trajectory may be in different groups
(`Row.trajectory`). Keeping groups whole is then not enough: a step that holds part of a trajectory
trains some of an agent's decisions without the others. If every group has calls of the same
trajectories, as when groups are the turns of one task, the unit is the task.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.types import Row, number_groups, rows_by_group


def rows_by_unit(rows: Sequence[Row]) -> list[list[int]]:
    """Indices of the rows of each unit, in order of first appearance; each unit in row order.

    Example:
        rows (group, trajectory): (a, t1), (b, t1), (b, t2), (c, "")    ->    [[0, 1, 2], [3]]
    """
    if not any(row.trajectory for row in rows):
        return list(rows_by_group(rows).values())
    group_numbers, group_names = number_groups(rows)
    parent = list(range(len(group_names)))  # of each group in a forest; a root is its own parent

    def find_root(group_number: int) -> int:
        while parent[group_number] != group_number:
            parent[group_number] = parent[parent[group_number]]  # halves the path for later
            group_number = parent[group_number]
        return group_number

    group_of_trajectory: dict[str, int] = {}
    for row, group_number in zip(rows, group_numbers, strict=True):
        if row.trajectory:
            first_group = group_of_trajectory.setdefault(row.trajectory, group_number)
            first_root, root = sorted((find_root(first_group), find_root(group_number)))
            parent[root] = first_root
    units: dict[int, list[int]] = {}
    for row_index, group_number in enumerate(group_numbers):
        units.setdefault(find_root(group_number), []).append(row_index)
    return list(units.values())


def find_split_unit(rows: Sequence[Row], steps: Sequence[Sequence[int]]) -> str:
    """Describe the first group or trajectory that is in more than one step; empty if none is."""
    for kind in ("group", "trajectory"):
        step_by_key: dict[str, int] = {}
        for step_number, step in enumerate(steps):
            for row_index in step:
                if not (key := getattr(rows[row_index], kind)):
                    continue
                home_step = step_by_key.setdefault(key, step_number)
                if home_step != step_number:
                    return f"{kind} '{key}' is in steps {home_step} and {step_number}"
    return ""
