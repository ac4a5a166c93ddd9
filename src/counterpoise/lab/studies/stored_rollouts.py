"""Batches from stored rollouts, for the studies that need rows only.

    poise study coupling --model PATH --rollouts DIR

DIR is a run folder or the output of `poise import`. Groups are taken in the order of steps; batch b
of n prompts is the groups (b-1) n to b n. They are credited and scored anew under the model, which
should be the one that sampled them. Prompts and responses must be stored as token ids: TRL and verl
do not write those; prime-rl, slime and miles do.
"""

from __future__ import annotations

from counterpoise.errors import PoiseError
from counterpoise.types import Group

# Studies that need rows only; the others sample, continue rollouts or train.
ROW_STUDIES = ("coupling", "masking", "polarity", "proxy")


def select_batch(groups: list[Group], prompts: int, batch: int) -> list[Group]:
    """The groups of batch number `batch`, counted from 1."""
    if batch * prompts > len(groups):
        raise PoiseError(
            f"--rollouts holds {len(groups)} groups, and the study needs {batch * prompts} for "
            f"batch {batch} of {prompts} prompts: store more steps, or lower --size prompts"
        )
    return groups[(batch - 1) * prompts : batch * prompts]
