"""The composition study: verdicts on made-up tokens, exact compositions, and a small real run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lab.studies.token_values import random_lab, tokens

from counterpoise.lab.studies import composition
from counterpoise.report.charts.vega import vega_specification
from counterpoise.types import Group, Rollout, Row


def group(rewards: list[float]) -> Group:
    ids = np.array([3], dtype=np.int32)
    rollouts = [
        Rollout("p", "p", "", str(i), r, ids, ids, np.zeros(1, np.float32))
        for i, r in enumerate(rewards)
    ]
    return Group("1:p", 1, tuple(rollouts))


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ((0.0, 0.1, 0.2, 0.1, 0.0), "replicated"),
        ((0.0, 0.1, 0.2, 0.2, 0.2), "inconclusive"),
        ((0.3, 0.2, 0.2, 0.1, 0.0), "not replicated"),
    ],
)
def test_the_verdict_needs_both_ends(gaps: tuple[float, ...], verdict: str) -> None:
    records = [
        r
        for right, gap in zip(composition.RIGHT_COUNTS, gaps, strict=True)
        for r in tokens(gap, right=right)
    ]
    found = composition.judge(records)
    assert found.verdict == verdict
    numbers = {n.name: n.value for n in found.numbers}
    assert numbers["gap, 4 of 8 right"] == pytest.approx(gaps[2], abs=0.01)
    assert numbers["gap, 4 of 8 right minus 7 of 8"] == pytest.approx(gaps[2] - gaps[4], abs=0.01)


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_compositions_hold_the_first_rollout_and_the_right_number(first: float) -> None:
    rng = np.random.default_rng(0)
    kept = composition.select_needed_rollouts(
        group([first, *rng.permutation([0.0] * 9 + [1.0] * 9)])
    )
    assert kept is not None
    assert len(kept.rollouts) == 14
    assert kept.rollouts[0].response == "0"
    order = [int(rollout.response) for rollout in kept.rollouts]
    assert order == sorted(order)
    rows = [
        Row("1:p", 1.0 if rollout.reward else -1.0, 1, index=i, rollout=rollout)
        for i, rollout in enumerate(kept.rollouts)
    ]
    for right in composition.RIGHT_COUNTS:
        chosen = composition.compose_rows(rows, right)
        assert len(chosen) == 8
        assert sum(row.content.reward for row in chosen) == right
        assert any(row.index == 0 for row in chosen)
        assert sum(row.advantage for row in chosen) == pytest.approx(0.0, abs=1e-9)
        assert sum(row.advantage**2 for row in chosen) == pytest.approx(7.0, rel=1e-4)


def test_groups_with_too_few_of_a_kind_are_out() -> None:
    assert composition.select_needed_rollouts(group([1.0] * 6 + [0.0] * 18)) is None
    assert composition.select_needed_rollouts(group([1.0] * 18 + [0.0] * 6)) is None
    assert composition.select_needed_rollouts(group([1.0] * 7 + [0.0] * 7)) is not None


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    small = random_lab(tmp_path, extra=24)
    records = list(composition.measure(small))
    by_arm = [
        {(r["prompt"], r["position"]): r["value"] for r in records if r["right"] == right}
        for right in composition.RIGHT_COUNTS
    ]
    assert all(arm == by_arm[0] for arm in by_arm)
    assert composition.judge(records).because
    for figure in composition.draw(records):
        assert vega_specification(figure)["layer"]
