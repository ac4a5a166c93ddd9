"""DAPO's dynamic sampling: groups without spread are dropped, and further prompts take their place.

    no spread    the verifier's rewards of the group are all equal: every rollout right, or wrong
    a round      as many further prompts as there are such groups, drawn by the same policy
    the end      no such group is left, `sample.refills` rounds are over, or no prompt is left

A group is dropped when another has its place, so a batch always has `sample.prompts` groups: those
that nobody replaced stay, without signal, as they would without dynamic sampling (verl stops the
run there). Every drawn group is in `groups` or in `dropped`. arXiv:2503.14476

Further prompts come in an order of their own, a function of the run's seed and the iteration:
iteration n has the prompts it has without dynamic sampling, and nothing has to be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.seeds import rng_for
from counterpoise.types import Group, Ints, Prompt


@dataclass(frozen=True, slots=True)
class RefilledBatch:
    """
    Example:
        RefilledBatch(groups=[g0, g5, g2], dropped=[g1, g3], rounds=2)
    """

    groups: list[Group]  # of the batch; one that came later stands where its predecessor stood
    dropped: list[Group]  # without spread, in the order in which they were given up
    rounds: int  # of sampling, the first included


def has_spread(group: Group) -> bool:
    return bool(np.ptp(group.rewards_G) > 0)


def refill_groups(
    groups: Sequence[Group], draw_more: Callable[[int], list[Group]], max_refills: int
) -> RefilledBatch:
    """`draw_more(n)` draws groups of n further prompts, or of as many as are left."""
    kept, drawn = list(groups), 1
    dropped: list[Group] = []
    for _ in range(max_refills):
        places = [i for i, group in enumerate(kept) if not has_spread(group)]
        arrived = draw_more(len(places)) if places else []
        if not arrived:
            break
        drawn += 1
        fresh = [group for group in arrived if has_spread(group)]
        for i, group in zip(places, fresh, strict=False):  # some places may stay as they are
            dropped.append(kept[i])
            kept[i] = group
        dropped += [group for group in arrived if not has_spread(group)]
    return RefilledBatch(kept, dropped, drawn)


def replacement_prompts(
    train_set: Sequence[tuple[Prompt, Ints]],
    used_prompts: Sequence[Prompt],
    seed: int,
    iteration: int,
) -> Iterator[tuple[Prompt, Ints]]:
    """All that iteration `iteration` did not ask for, in the order in which they may be."""
    known = {prompt.id for prompt in used_prompts}
    order = rng_for(seed, "refill", iteration).permutation(len(train_set))
    return (train_set[i] for i in order if train_set[i][0].id not in known)
