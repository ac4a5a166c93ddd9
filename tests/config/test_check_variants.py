"""Composers and credit that do not go together are refused in each engine's own words."""

from __future__ import annotations

import pytest

from counterpoise.config.check_variants import (
    WHY_TWO_STEPS,
    EngineWords,
    composer_fault,
    credit_fault,
    group_fault,
)
from counterpoise.variants import COMPOSERS, TWO_STEP_COMPOSERS

WORDS = EngineWords(
    composer="mix='{}'",
    token_weights="weigh='{}'",
    credit="credit='{}'",
    no_balance="rb=0",
    one_step="set k=1",
    two_steps="raise k",
    fewer_steps="lower k",
    prompts="n",
    balance_target="fill",
    steps="updates",
    trainer="Theirs",
)


def test_steps_of_a_composer() -> None:
    assert composer_fault("whole", 2, WORDS) == "mix='whole' makes one step: set k=1"
    assert composer_fault("half_groups", 1, WORDS) == (
        "mix='half_groups' needs a step for each half: raise k"
    )
    assert composer_fault("coupled", 2, WORDS) == (
        "mix='coupled' compares tokens, which Theirs's plans do not carry: set mix='grouped'"
    )
    assert composer_fault("shuffled", 1, WORDS) == ""
    assert set(WHY_TWO_STEPS) == set(TWO_STEP_COMPOSERS) < set(COMPOSERS)


@pytest.mark.parametrize(
    ("composer", "groups", "target", "fault"),
    [
        ("grouped", 1, 0, "1 group cannot fill 2 updates by grouped: lower k or raise n"),
        ("paired", 2, 8, "fill=8 may be 1 group, which cannot fill 2 updates by paired: lower k or "
         "raise fill"),
        ("paired", 2, 9, ""),
        ("shuffled", 1, 0, ""),
    ],
)  # fmt: skip
def test_groups_of_a_composer(composer: str, groups: int, target: int, fault: str) -> None:
    assert group_fault(composer, 2, groups, 8, target, WORDS) == fault


def test_credit() -> None:
    assert credit_fault("w_reinforce", "otb", False, WORDS) == (
        "weigh='otb' replaces the group's mean as baseline, which credit='w_reinforce' does not "
        "have: set credit='dr_grpo'"
    )
    assert credit_fault("positive_only", "uniform", True, WORDS) == (
        "credit='positive_only' has no negative rollouts to balance: set rb=0"
    )
    assert credit_fault("positive_only", "uniform", False, WORDS) == ""
    assert credit_fault("grpo", "otb", True, WORDS) == ""
