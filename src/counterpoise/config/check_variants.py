"""Checks of composers and credit that all three engines make, each in the words of its options.

`poise train`, PoiseConfig inside TRL and the section `poise` of verl's config name the same options
differently; which variants go together does not depend on that (variants.py has the lists). Each
function returns what is wrong as one line, or "".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from counterpoise.errors import format_count
from counterpoise.variants import (
    COMPOSERS_THAT_READ_TOKENS,
    GROUP_COMPOSERS,
    ONE_SIDED_ADVANTAGES,
    TWO_STEP_COMPOSERS,
)

WHY_TWO_STEPS = {
    "by_sign": "puts the signs into different steps",
    "half_groups": "needs a step for each half",
}


@dataclass(frozen=True, slots=True)
class EngineWords:
    """How an engine writes the options that a check names, and what it advises; `{}` is a value.

    Example:
        EngineWords(composer="batch.composer={}", one_step="set batch.steps=1", ...)
    """

    composer: str
    token_weights: str
    credit: str
    no_balance: str  # RB switched off
    one_step: str  # how a batch becomes a single optimizer step
    two_steps: str  # ... two at least
    # These three are for engines whose batches may have too few groups.
    fewer_steps: str = ""
    prompts: str = ""  # the option that gives more groups
    balance_target: str = ""  # RB: the option that gives more groups
    steps: str = "steps"  # what optimizer steps are called
    trainer: str = ""  # whose plans carry no tokens; "" for ours, which do


def composer_fault(composer: str, num_steps: int, words: EngineWords) -> str:
    """Why a composer cannot make that number of optimizer steps of a batch."""
    shown = words.composer.format(composer)
    if words.trainer and composer in COMPOSERS_THAT_READ_TOKENS:
        return (
            f"{shown} compares tokens, which {words.trainer}'s plans do not carry: set "
            f"{words.composer.format('grouped')}"
        )
    if composer == "whole" and num_steps > 1:
        return f"{shown} makes one step: {words.one_step}"
    if composer in TWO_STEP_COMPOSERS and num_steps == 1:
        return f"{shown} {WHY_TWO_STEPS[composer]}: {words.two_steps}"
    return ""


def group_fault(
    composer: str, num_steps: int, num_groups: int, group_size: int, target: int, words: EngineWords
) -> str:
    """Why a batch has too few groups for a composer that places whole ones, or halves of them.

    `target` is the number of rollouts that RB fills, maybe with few groups; 0: no RB.
    """
    if composer not in GROUP_COMPOSERS:
        return ""
    cannot_fill = f"cannot fill {num_steps} {words.steps} by {composer}: {words.fewer_steps}"
    if num_groups < num_steps:
        return f"{format_count(num_groups, 'group')} {cannot_fill} or raise {words.prompts}"
    fewest_groups = math.ceil(target / group_size)
    if target and fewest_groups < num_steps:
        option, groups = words.balance_target, format_count(fewest_groups, "group")
        return f"{option}={target} may be {groups}, which {cannot_fill} or raise {option}"
    return ""


def credit_fault(credit: str, token_weights: str, is_balanced: bool, words: EngineWords) -> str:
    """Why an advantage does not go with token weights or with RB."""
    shown = words.credit.format(credit)
    if token_weights == "otb" and credit in ONE_SIDED_ADVANTAGES:
        return (
            f"{words.token_weights.format('otb')} replaces the group's mean as baseline, which "
            f"{shown} does not have: set {words.credit.format('dr_grpo')}"
        )
    if is_balanced and credit == "positive_only":
        return f"{shown} has no negative rollouts to balance: set {words.no_balance}"
    return ""
