"""Batches from stored rollouts, for the studies that need rows only.

    poise study coupling --model PATH --rollouts DIR

DIR is a run folder or the output of `poise import`. Groups are taken in the order of steps; batch b
of n prompts is the groups (b-1) n to b n. They are credited and scored anew under the model, which
should be the one that sampled them. Prompts and responses must be stored as token ids: TRL and verl
do not write those; prime-rl, slime and miles do.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from counterpoise.errors import PoiseError
from counterpoise.types import Group

# Studies that need rows only; the others sample, continue rollouts or train.
ROW_STUDIES = ("coupling", "masking", "polarity", "proxy")


def digest_groups(groups: Sequence[Group]) -> str:
    """A digest of what a study reads of these groups: tokens and rewards."""
    hasher = sha256()
    for group in groups:
        hasher.update(group.key.encode())
        for rollout in group.rollouts:
            hasher.update(repr(rollout.reward).encode())
            hasher.update(rollout.prompt_tokens.tobytes() + b"/")
            hasher.update(rollout.response_tokens.tobytes())
    return hasher.hexdigest()[:16]


def select_batch(groups: list[Group], prompts: int, batch: int) -> list[Group]:
    """The groups of batch number `batch`, counted from 1."""
    if batch * prompts > len(groups):
        raise PoiseError(
            f"--rollouts holds {len(groups)} groups, and the study needs {batch * prompts} for "
            f"batch {batch} of {prompts} prompts: store more steps, or lower --size prompts"
        )
    return groups[(batch - 1) * prompts : batch * prompts]
