"""Every plan is a partition; every rule keeps its promise; every impossible request says why."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch.compose import check_plan, compose
from counterpoise.batch.describe import describe_plan
from counterpoise.errors import PoiseError
from counterpoise.types import BatchPlan, Row
from counterpoise.variants import COMPOSERS

PLAIN = sorted(set(COMPOSERS) - {"coupled"})  # it reads tokens as well: test_coupled.py
SPLITTING = [rule for rule in PLAIN if rule != "whole"]


def row(group: str = "g", advantage: float = 1.0, num_tokens: int = 1) -> Row:
    return Row(group=group, advantage=advantage, num_tokens=num_tokens)


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Up to 12 groups of up to 6 rows, in any order."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
    rows = [
        row(f"g{g}", draw(st.sampled_from([-1.5, -0.5, 0.0, 1.0])), draw(st.integers(1, 5000)))
        for g, size in enumerate(sizes)
        for _ in range(size)
    ]
    return draw(st.permutations(rows))


def feasible(rule: str, rows: list[Row], num_steps: int) -> bool:
    groups, signs = {r.group for r in rows}, {r.sign for r in rows} - {0}
    if rule in ("grouped", "paired") and len(groups) < num_steps:
        return False
    if rule == "half_groups" and not 1 < num_steps <= len(groups):
        return False
    if rule == "by_sign" and num_steps == 1 and len(signs) == 2:
        return False
    return rule != "whole" or num_steps == 1


@settings(deadline=None)
@given(batches(), st.sampled_from(PLAIN), st.data(), st.integers(0, 2**62))
def test_a_plan_is_a_partition_that_keeps_its_promise(rows, rule, data, seed):
    num_steps = data.draw(st.integers(1, len(rows)))
    if not feasible(rule, rows, num_steps):
        with pytest.raises(PoiseError, match=r"batch\.steps"):
            compose(rule, rows, num_steps, seed)
        return
    plan = compose(rule, rows, num_steps, seed)
    assert len(plan.steps) == num_steps
    assert all(plan.steps)
    assert sorted(i for step in plan.steps for i in step) == list(range(len(rows)))
    if rule == "grouped":
        homes = {(rows[i].group, s) for s, step in enumerate(plan.steps) for i in step}
        assert len(homes) == len({r.group for r in rows})
    if rule == "by_sign":
        for step in plan.steps:
            assert len({rows[i].sign for i in step} - {0}) <= 1
    if rule in ("shuffled", "token_balanced", "zigzag"):
        counts = [len(step) for step in plan.steps]
        assert max(counts) - min(counts) <= 1
    assert plan == compose(rule, rows, num_steps, seed)


@pytest.mark.parametrize(
    "rule", ["grouped", "half_groups", "shuffled", "token_balanced", "by_sign"]
)
def test_the_seed_decides(rule):
    rows = [row(f"g{i // 4}", [1.0, -1.0][i % 2], 10) for i in range(64)]
    assert len({compose(rule, rows, 4, seed).steps for seed in range(5)}) > 1


def log_normal_rows(seed: int, groups: int = 128, size: int = 8) -> list[Row]:
    lengths = np.exp(np.random.default_rng(seed).normal(5.5, 1.0, groups * size))
    return [row(f"g{i // size}", 1.0, max(1, round(length))) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("rule", ["grouped", "token_balanced"])
def test_the_heaviest_step_is_within_two_percent(rule):
    for seed in range(40):
        rows = log_normal_rows(seed)
        plan = compose(rule, rows, 4, seed)
        assert describe_plan(rows, plan)["token_imbalance"] <= 1.02
        assert [len(step) for step in plan.steps] == [256] * 4  # 32 whole groups, or 256 rows


def test_grouped_gives_up_equal_counts_for_a_group_as_heavy_as_a_step():
    rows = [row("giant", 1.0, 300)] + [row(f"g{i}", 1.0, 10) for i in range(90)]
    plan = compose("grouped", rows, 4, seed=0)
    description = describe_plan(rows, plan)
    assert description["token_imbalance"] == 1.0
    assert sorted(description["rows_per_step"]) == [1, 30, 30, 30]


def test_grouped_keeps_a_group_together_wherever_its_rows_stand():
    rows = [row(f"g{i % 8}") for i in range(32)]
    random.Random(0).shuffle(rows)
    assert describe_plan(rows, compose("grouped", rows, 4, 0))["split_groups"] == 0


def test_half_groups_is_a_dose_between_whole_groups_and_shuffled_rows():
    rows = [row(f"g{i // 8}", [1.0, -1.0][i % 2], 10) for i in range(256)]
    doses = {rule: [] for rule in ("grouped", "half_groups", "shuffled")}
    for rule, ratios in doses.items():
        for seed in range(40):
            description = describe_plan(rows, compose(rule, rows, 4, seed))
            ratios.append(description["cross_advantage_ratio"])
            assert rule != "half_groups" or description["rows_per_step"] == [64] * 4
    assert np.mean(doses["grouped"]) == -1.0
    assert np.mean(doses["half_groups"]) == pytest.approx(-3 / 7, abs=0.02)
    assert np.mean(doses["shuffled"]) == pytest.approx(-63 / 255, abs=0.02)


def test_half_groups_promises_two_halves():
    rows = [row(f"g{i // 4}") for i in range(8)]
    assert check_plan(rows, BatchPlan("half_groups", ((0, 1, 4, 5), (2, 3, 6, 7)))) is None
    with pytest.raises(PoiseError, match=r"group 'g0' has parts of \[3, 1\] rows, not two halves"):
        check_plan(rows, BatchPlan("half_groups", ((0, 1, 2, 4, 5), (3, 6, 7))))


def test_zigzag_is_the_order_of_verl():
    lengths = [5, 1, 8, 3, 2, 7, 6, 4]
    rows = [row(num_tokens=length) for length in lengths]
    steps = compose("zigzag", rows, 4, seed=0).steps
    assert [[lengths[i] for i in step] for step in steps] == [[1, 3], [5, 7], [8, 6], [4, 2]]


def test_by_sign_shares_the_steps_in_proportion():
    rows = [row(advantage=1.0)] * 6 + [row(advantage=-1.0)] * 18 + [row(advantage=0.0)] * 8
    steps = compose("by_sign", rows, 4, seed=0).steps
    assert sum(any(rows[i].sign > 0 for i in step) for step in steps) == 1
    assert [len(step) for step in steps] == [8] * 4  # 6 + 2 without signal, three times


def test_by_sign_gives_a_lone_sign_every_step():
    rows = [row(advantage=-1.0)] * 5
    assert len(compose("by_sign", rows, 3, seed=0).steps) == 3


def test_by_sign_gives_a_rare_sign_one_step():
    rows = [row(advantage=1.0)] + [row(advantage=-1.0)] * 99
    assert (0,) in compose("by_sign", rows, 4, seed=0).steps


def test_by_sign_survives_a_batch_without_signal():
    assert len(compose("by_sign", [row(advantage=0.0)] * 8, 4, seed=0).steps) == 4


@pytest.mark.parametrize("rule", SPLITTING)
def test_too_few_rows(rule):
    with pytest.raises(
        PoiseError,
        match=r"^2 rows cannot fill 3 steps: lower num_steps \(batch\.steps; poise plan: --steps\)",
    ):
        compose(rule, [row("a"), row("b")], 3, seed=0)


def test_no_steps():
    with pytest.raises(PoiseError, match="0 steps"):
        compose("whole", [], 0, seed=0)


def test_an_unknown_rule_names_the_nearest():
    with pytest.raises(PoiseError, match="did you mean 'grouped'"):
        compose("groupd", [row()], 1, seed=0)


@pytest.mark.parametrize(
    ("rule", "steps", "fault"),
    [
        ("shuffled", ((0, 1), (1, 2, 3)), "not a partition"),
        ("shuffled", ((0, 1, 2),), "not a partition"),
        ("shuffled", ((0, 1, 2, 3), ()), "step 1 is empty"),
        ("grouped", ((0, 1, 2), (3,)), "group 'b' is in steps 0 and 1"),
        ("by_sign", ((0, 1), (2, 3)), "step 0 holds rows of both signs"),
        ("someone_elses", ((0,), (1, 2, 3), (4,)), "not a partition"),
    ],
)
def test_check_refuses_a_plan_that_is_none(rule, steps, fault):
    rows = [row("a", 1.0), row("a", -1.0), row("b", 1.0), row("b", -1.0)]
    with pytest.raises(PoiseError, match=fault):
        check_plan(rows, BatchPlan(composer=rule, steps=steps))


def test_check_accepts_a_hosts_own_plan():
    check_plan([row(), row()], BatchPlan(composer="someone_elses", steps=((1,), (0,))))
