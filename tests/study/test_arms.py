"""Arms: curves read at equal cost, differences by seed, runs as they are on disk."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from counterpoise.runfile import load_config
from counterpoise.store.folder import RunFolder
from counterpoise.study.arms import (
    after,
    at_equal,
    beside,
    compare,
    measure_arms,
    numbers,
    rates,
    read_run,
)
from counterpoise.study.lab import Lab
from counterpoise.study.student import quantile
from counterpoise.study.study import Record
from study.made_up import run


def test_at_equal_rollouts_and_updates_by_hand() -> None:
    """RB took 6 updates, the other 8: its curve is read at 6, halfway between 4 and 8."""
    records = run("shuffled", 0, [0.4, 0.5, 0.6], 4) + run("RB", 0, [0.4, 0.5, 0.7], 3)
    assert at_equal(records, 1e-4, "rollouts") == {"shuffled": {0: 0.6}, "RB": {0: 0.7}}
    found = at_equal(records, 1e-4, "updates")
    assert found["shuffled"][0] == pytest.approx(0.55)
    assert found["RB"][0] == pytest.approx(0.7)


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ by 0.2, arms by 0.01, 0.02, 0.03: the pairs see it."""
    records: list[Record] = []
    for seed in range(3):
        end = 0.5 + 0.2 * seed
        records += run("shuffled", seed, [0.4, 0.5, end], 4)
        records += run("QB", seed, [0.4, 0.5, end + 0.01 * (seed + 1)], 4)
    (one,) = compare(records, "QB")
    half = quantile(0.975, 2) * 0.01 / math.sqrt(3)
    assert one.rollouts.value == pytest.approx(0.02)
    assert (one.rollouts.low, one.rollouts.high) == pytest.approx((0.02 - half, 0.02 + half))
    assert one.updates.value == pytest.approx(0.02)
    assert after(records, "QB", 1e-4).value == pytest.approx(0.72)


def test_two_rates_share_the_error() -> None:
    records: list[Record] = []
    for rate in (1e-4, 4e-4):
        for seed in range(3):
            records += run("shuffled", seed, [0.4, 0.5, 0.6], 4, rate)
            records += run("QB", seed, [0.4, 0.5, 0.6 + 0.01 * seed], 4, rate)
    assert rates(records) == [1e-4, 4e-4]
    first, second = compare(records, "QB")
    half = quantile(1 - 0.05 / 4, 2) * 0.01 / math.sqrt(3)
    assert first.rollouts.high - first.rollouts.value == pytest.approx(half)
    assert second.rate == 4e-4


def test_numbers_leave_out_what_was_not_measured() -> None:
    records = run("shuffled", 0, [0.4, 0.5, 0.6], 4) + run("QB", 0, [0.4, 0.5, 0.7], 4)
    names = [n.name for n in numbers(records)]
    assert "QB minus shuffled, lr 0.0001, equal updates" in names
    assert "QB, lr 0.0001: share of groups split" in names
    assert not any("cancellation" in name for name in names)
    assert beside(records, "QB", 1e-4, "cancellation") is None


def test_a_run_as_it_is_on_disk(tmp_path: Path) -> None:
    """The first iteration waited for balance: no update, no plan, no entropy."""
    folder = RunFolder.create(tmp_path / "run", load_config("demo"))
    line = {"iteration": 1, "steps": 0, "rollouts": 64, "success": 0.4, "entropy": None}
    folder.append("metrics", {**line, "cancellation": None})
    folder.append("metrics", {**line, "iteration": 2, "steps": 3, "success": 0.6, "entropy": 0.3,
                              "cancellation": 0.9})  # fmt: skip
    described = {"split_share": 0.25, "max_abs_group_advantage_sum": 1.5}
    folder.append("plans", {"iteration": 2, "describe": described})
    folder.append("evaluations", {"iteration": 0, "mean": 0.45})
    folder.append("evaluations", {"iteration": 2, "mean": 0.55})
    *curve, rest = read_run(folder)
    assert [r["updates"] for r in curve] == [0, 0, 3]
    assert [r["rollouts"] for r in curve] == [0, 64, 128]
    assert [r["heldout"] for r in curve] == [0.45, None, 0.55]
    assert [r["success"] for r in curve] == [None, 0.4, 0.6]
    assert rest == {"panel": "beside", "cancellation": 0.9, "split": 0.25, "largest_sum": 1.5,
                    "entropy": 0.3, "updates": 3}  # fmt: skip


@pytest.mark.slow
def test_arms_are_trained(tmp_path: Path) -> None:
    sizes = {"rates": [1e-4], "seeds": 1, "iterations": 1, "prompts": 4, "target": 16, "steps": 2,
             "evaluate_every": 0, "heldout": 4, "samples": 2, "monitor_every": 1}  # fmt: skip
    records = measure_arms(Lab("embedded", "quick", tmp_path, sizes=sizes), ("shuffled", "QB"))
    split = {r["arm"]: r["split"] for r in records if r["panel"] == "beside"}
    assert split["QB"] == 0
    assert split["shuffled"] > 0
    assert set(at_equal(records, 1e-4, "rollouts")) == {"shuffled", "QB"}
    assert all(0 <= r["cancellation"] <= 1 for r in records if r["panel"] == "beside")
