"""DAPO's dynamic sampling: groups without reward spread are replaced by groups of other prompts.

    no spread    all verifier rewards of the group are equal: every rollout right, or all wrong
    a round      samples as many unused prompts as there are such groups, with the same policy
    the end      no such group remains, `sample.refills` rounds are over, or no prompt remains

A group of the batch is dropped only when another takes its place, so a batch always has
`sample.prompts` groups; a candidate without spread is dropped at once. Groups that cannot be
replaced stay in the batch and give no signal, as if dynamic sampling were off (verl stops the run
there). Every sampled group ends up in `groups` or in `dropped`.
arXiv:2503.14476

Replacement prompts come in a separate shuffled order, a function of the run's seed and the
iteration. So iteration n starts with the same prompts as without dynamic sampling, and a resumed
run has no order to restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.seeds import rng_for
from counterpoise.types import Group, Ints, Prompt


@dataclass(frozen=True, slots=True)
class RefilledBatch:
    """The groups of a batch after dynamic sampling.

    Example:
        RefilledBatch(groups=[g0, g5, g2], dropped=[g1, g3], rounds=2)
    """

    groups: list[Group]  # a replacement takes the place of the group it replaced
    dropped: list[Group]  # groups without spread, in the order in which they were dropped
    rounds: int  # of sampling, including the first


def has_spread(group: Group) -> bool:
    """Whether the rewards of the group differ at all; rollouts without a reward do not count."""
    rewards_G = group.rewards_G[~np.isnan(group.rewards_G)]
    return bool(len(rewards_G) and np.ptp(rewards_G) > 0)


def refill_groups(
    groups: Sequence[Group], draw_more: Callable[[int], list[Group]], max_refills: int
) -> RefilledBatch:
    """Replace groups without spread; `draw_more(n)` samples up to n further groups."""
    batch_groups, num_rounds = list(groups), 1
    dropped: list[Group] = []
    for _ in range(max_refills):
        uniform_indices = [i for i, group in enumerate(batch_groups) if not has_spread(group)]
        candidates = draw_more(len(uniform_indices)) if uniform_indices else []
        if not candidates:
            break
        num_rounds += 1
        replacements = [group for group in candidates if has_spread(group)]
        # There may be fewer replacements than uniform groups: the rest wait for the next round.
        for i, group in zip(uniform_indices, replacements, strict=False):
            dropped.append(batch_groups[i])
            batch_groups[i] = group
        dropped += [group for group in candidates if not has_spread(group)]
    return RefilledBatch(batch_groups, dropped, num_rounds)


def replacement_prompts(
    train_set: Sequence[tuple[Prompt, Ints]],
    used_prompts: Sequence[Prompt],
    seed: int,
    iteration: int,
) -> Iterator[tuple[Prompt, Ints]]:
    """The prompts that the iteration has not used, in the order in which refills take them."""
    used_ids = {prompt.id for prompt in used_prompts}
    order = rng_for(seed, "refill", iteration).permutation(len(train_set))
    return (train_set[i] for i in order if train_set[i][0].id not in used_ids)
