"""Find the groups of ms-swift's rollouts: blocks of adjacent rows, or rows of equal prompts.

    rows 0 .. G-1 | G .. 2G-1 | ...        G = num_generations, from args.json

The trainer computes advantages over these blocks. They are taken as groups if all prompts in each
are equal, or if the prompts of a block begin alike for longer than they do with the rows next to
the block. The latter are rollouts of several turns, whose prompts hold the earlier turns.
Otherwise, and without args.json, equal prompts are a group, as in TRL's files.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.hosts.importing.table_inference import group_rows, rows_by_prompt
from counterpoise.hosts.ms_swift.tables import CompletionTable


def group_table(table: CompletionTable, group_size: int) -> list[list[int]]:
    """The rows of each group; `group_size` is 0 where it is not known."""
    if group_size and are_blocks_groups(table.prompts, group_size):
        return [
            list(range(start, start + group_size)) for start in range(0, len(table), group_size)
        ]
    if table.advantages is not None:
        return group_rows(table.prompts, table.advantages)
    return rows_by_prompt(table.prompts)


def are_blocks_groups(prompts: Sequence[str], group_size: int) -> bool:
    """Whether no block of `group_size` rows can hold rows of two prompts.

    Example:
        >>> are_blocks_groups(["far? 1", "far? 2", "many? 1", "many? 2"], 2)
        True
        >>> are_blocks_groups(["far? 1", "many? 1", "many? 2", "far? 2"], 2)
        False
    """
    if len(prompts) % group_size:
        return False
    for start in range(0, len(prompts), group_size):
        end = start + group_size
        block = prompts[start:end]
        if len(set(block)) == 1:
            continue
        shared = len(shared_beginning(block))
        neighbours = [prompts[row] for row in (start - 1, end) if 0 <= row < len(prompts)]
        # A block without a neighbour has nothing to be compared with.
        if not neighbours or any(
            len(shared_beginning([block[0][:shared], neighbour])) == shared
            for neighbour in neighbours
        ):
            return False
    return True


def shared_beginning(prompts: Sequence[str]) -> str:
    """The beginning that all of them have."""
    first, last = min(prompts), max(prompts)  # all others lie between them
    differing = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differing, min(len(first), len(last)))]


def choose_prompt_names(table: CompletionTable, groups: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row that names its prompt: that of its group, without its own turns."""
    names = [""] * len(table)
    for rows in groups:
        shared = shared_beginning([table.prompts[row] for row in rows])
        for row in rows:
            names[row] = shared
    return names
