"""A look at a part is exact of that part, and the passes drawn are those of the update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch.compose import compose
from counterpoise.config import UpdateConfig
from counterpoise.microscope.coupling import decompose, decompose_residuals
from counterpoise.microscope.monitor import Monitor, StepMeasurement
from counterpoise.microscope.monitor_records import monitor_metrics, token_columns
from counterpoise.microscope.monitor_sampling import choose_monitored_rows, first_mixed_groups
from counterpoise.model.residuals import Residuals
from counterpoise.model.scoring import micro_batches
from counterpoise.types import BatchPlan, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

MICRO = 60


def step(rows: list[Row], monitor: Monitor) -> list[StepMeasurement]:
    policy = tiny.policy()
    config = UpdateConfig(lr=1e-2, optimizer="sgd", micro_tokens=MICRO)
    optimizer = Optimizer(policy.model, config)
    take_step(
        policy,
        optimizer,
        rows,
        StepSettings(config, temperature=0.8, max_new_tokens=17),
        observer=monitor.at(0, rows),
    )
    return monitor.measurements


def test_who_pushed_some_tokens_is_what_the_whole_says_of_them() -> None:
    generator = torch.Generator().manual_seed(0)
    N, V, D = 300, 37, 16
    hidden, W = (torch.randn(n, D, generator=generator) for n in (N, V))
    tokens = torch.randint(0, V, (N,), generator=generator)
    advantages = torch.randn(N, generator=generator)
    groups = torch.arange(N) // 60
    whole = decompose(hidden, W, tokens, advantages, groups)
    of = np.array([3, 4, 5, 70, 299])  # parts of queries: the rest of these still pushes
    some = decompose_residuals(Residuals(hidden, W, tokens), tokens, advantages, groups, targets=of)
    for name in ("self_push", "total", "positive", "negative"):
        torch.testing.assert_close(getattr(some, name), getattr(whole, name)[of])
    for part, values in some.parts.items():
        torch.testing.assert_close(values, whole.parts[part][of], atol=1e-4, rtol=1e-4)


def test_a_look_at_a_part_is_the_whole_look_at_that_part() -> None:
    rows = tiny.rows(groups=4)
    (whole,) = step(rows, Monitor(0.8, MICRO, {"p0"}))
    plan = BatchPlan("whole", (tuple(range(len(rows))),))
    drawn = choose_monitored_rows(rows, plan, MICRO, 40, seed=1)
    assert drawn is not None
    looked = [i for i, row in enumerate(rows) if (row.group, row.index) in drawn]
    (part,) = step(rows, Monitor(0.8, MICRO, {"p0"}, measured_rows=drawn))
    assert part.measured_rows == tuple(looked)
    assert len(looked) < len(rows)
    lengths = [row.num_tokens for row in rows]
    of = np.flatnonzero(np.repeat([i in looked for i in range(len(rows))], lengths))
    np.testing.assert_array_equal(part.displacement, whole.displacement[of])  # to the last bit
    np.testing.assert_array_equal(part.advantages, whole.advantages[of])
    torch.testing.assert_close(part.coupling.total, whole.coupling.total[of])
    watched = {rows[whole.rows[i]].group for i in part.measured_rows if rows[i].group == "p0"}
    assert bool(len(part.watched_tokens)) == bool(watched)
    assert part.shared_prefixes == whole.shared_prefixes  # of the step
    table = token_columns([part], of, sum(lengths))
    assert np.isfinite(table["displacement"]).sum() == len(of)
    np.testing.assert_array_equal(table["displacement"][of], part.displacement)
    flips = np.sign(part.displacement) * np.sign(part.advantages)
    flips = flips[np.abs(part.displacement) > 1e-6]
    assert monitor_metrics([part])["flipped"] == pytest.approx((flips < 0).sum() / len(of))


def test_a_step_without_a_row_that_is_wanted_is_not_looked_at() -> None:
    rows = tiny.rows()
    assert Monitor(1.0, MICRO, (), measured_rows=frozenset({("other", 0)})).at(2, rows) is None
    monitor = Monitor(1.0, MICRO, (), measured_rows=frozenset({(rows[3].group, rows[3].index)}))
    assert monitor.at(2, rows) is monitor


def test_a_wanted_row_whose_token_weights_are_all_zero_is_not_measured() -> None:
    """It takes no part in the step, which goes on; the next step is measured as always."""
    rows = tiny.rows()
    silent = replace(rows[0], weights_T=np.zeros(rows[0].num_tokens, np.float32))
    alone = Monitor(0.8, MICRO, {"p0"}, measured_rows={silent.name})
    assert step([silent, *rows[1:]], alone) == []
    assert len(step(rows, alone)) == 1


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 6),
    steps=st.integers(1, 4),
    micro=st.integers(20, 200),
    limit=st.integers(0, 400),
    seed=st.integers(0, 5),
)
def test_whole_passes_are_drawn(groups: int, steps: int, micro: int, limit: int, seed: int) -> None:
    rows = tiny.rows(groups=groups, seed=seed)
    plan = compose("shuffled", rows, steps, seed)
    drawn = choose_monitored_rows(rows, plan, micro, limit, seed)
    assert drawn == choose_monitored_rows(rows, plan, micro, limit, seed)
    total = sum(row.num_tokens for row in rows if row.sign)
    if limit == 0 or total <= limit:
        assert drawn is None
        return
    assert drawn is not None
    sizes = []
    for chosen in plan.steps:
        used = [rows[i] for i in chosen if rows[i].sign]
        for batch in micro_batches(used, micro):
            inside = {(used[i].group, used[i].index) in drawn for i in batch}
            assert len(inside) == 1  # all of a pass, or nothing
            sizes += [sum(used[i].num_tokens for i in batch)] * inside.pop()
    assert len(sizes) == 1 or sum(sizes) <= limit


def test_every_token_has_its_turn() -> None:
    rows = tiny.rows(groups=6)
    plan = compose("shuffled", rows, 2, 0)
    seen = frozenset().union(
        *(choose_monitored_rows(rows, plan, 50, 60, seed) or () for seed in range(60))
    )
    assert seen == {(row.group, row.index) for row in rows if row.sign}


def test_watched_are_the_first_groups_with_both_signs() -> None:
    rows = tiny.rows(groups=3)
    assert first_mixed_groups(rows, 2) == {"p0", "p1"}
    assert first_mixed_groups([row for row in rows if row.sign > 0], 2) == frozenset()
