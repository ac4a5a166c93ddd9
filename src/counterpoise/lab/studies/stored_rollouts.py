"""Rollouts that are already there, for the studies that need nothing but rows.

    poise study coupling --model PATH --rollouts DIR

DIR is a run or what `poise import` made. Groups come in the order of steps; batch b of n prompts is
the groups (b-1) n to b n. They are credited and scored anew under the model, which should be the
one that drew them. Prompt and response must be there as the tokens the model saw: TRL and verl do
not write them, prime-rl does.
"""

from __future__ import annotations

from counterpoise.errors import PoiseError
from counterpoise.types import Group

ROW_STUDIES = ("coupling", "masking", "polarity", "proxy")  # the others draw, continue or train


def select_batch(groups: list[Group], prompts: int, batch: int) -> list[Group]:
    if batch * prompts > len(groups):
        raise PoiseError(
            f"--rollouts holds {len(groups)} groups, and the study needs {batch * prompts} for "
            f"batch {batch} of {prompts} prompts: give it more steps"
        )
    return groups[(batch - 1) * prompts : batch * prompts]
