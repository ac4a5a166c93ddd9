"""The gap in closed form, and what must not be mistaken for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lab.studies.token_values import tokens

from counterpoise.lab.studies.value_gap import (
    detectable_gap,
    detectable_note,
    gap_change,
    gap_curves,
    matched_gap,
    pool_signs,
    strongest_quarter,
    value_gap,
    verdict_from_intervals,
)
from counterpoise.statistics.finding import Record


def record(value: float, delta: float, prompt: str = "a", **more: Any) -> Record:
    return {
        "prompt": prompt, "sign": "positive", "value": value, "delta": delta, "weight": 1.0,
        "p": 0.5, **more,
    }  # fmt: skip


def test_boosted_minus_suppressed() -> None:
    records = [
        record(0.5, 1e-3),
        record(0.1, 2e-3),
        record(-0.2, -1e-3),
        record(9.0, 1e-6),  # stable: not above the threshold
        record(9.0, -1e-7),
    ]
    assert value_gap(records)[0] == pytest.approx(0.3 + 0.2)
    records[0]["weight"] = 3.0
    assert value_gap(records)[0] == pytest.approx((3 * 0.5 + 0.1) / 4 + 0.2)


def test_signs_weigh_the_same_however_many_tokens_they_have() -> None:
    """A gap between right and wrong rollouts alone is none between their tokens."""
    positive = [record(0.9, 0.1)] * 9 + [record(0.9, -0.1)]
    negative = [record(0.1, 0.1, sign="negative")] + [record(0.1, -0.1, sign="negative")] * 9
    assert value_gap([*positive, *negative])[0] == pytest.approx(0.0)
    assert value_gap(pool_signs([*positive, *negative]))[0] == pytest.approx(0.82 - 0.18)
    negative[0]["value"] = 0.5
    assert value_gap([*positive, *negative])[0] == pytest.approx(0.2)
    assert value_gap(negative)[0] == pytest.approx(0.4)


def test_one_side_alone_has_no_gap() -> None:
    assert np.isnan(value_gap([record(0.5, 1e-3), record(0.4, 1e-3, "b")])[0])


def test_changes_are_paired_by_prompt() -> None:
    """Prompts differ wildly; what each arm adds to all of them is seen all the same."""
    rng = np.random.default_rng(0)
    levels = rng.normal(scale=5, size=20)
    before = [
        record(level * up + 0.0, 0.1 if up else -0.1, str(p))
        for p, level in enumerate(levels)
        for up in (0, 1)
    ]
    after = [{**r, "value": r["value"] + 0.1 * (r["delta"] > 0)} for r in before]
    value, low, high = gap_change(after, before)
    assert (value, low, high) == pytest.approx((0.1, 0.1, 0.1))
    assert value_gap(after)[2] - value_gap(after)[1] > 1


def test_likely_tokens_that_are_worth_more_make_no_matched_gap() -> None:
    """Value follows p alone, and so does the class: all of the gap is owed to p."""
    rng = np.random.default_rng(1)
    records = []
    for n in range(4000):
        p = float(rng.choice([0.1, 0.3, 0.5, 0.7, 0.9]))
        records.append(record(p, 0.1 if rng.random() < p else -0.1, str(n % 40), p=p))
    assert value_gap(records)[1] > 0.2
    assert matched_gap(records)[0] == pytest.approx(0.0, abs=1e-12)


def test_matched_gap_weighs_bins_by_what_they_tell() -> None:
    low = [record(1.0, 0.1, p=0.1), record(0.0, -0.1, p=0.1), record(0.0, -0.1, p=0.1)]
    high = [record(0.5, 0.1, p=0.9), record(0.0, -0.1, p=0.9)]
    alone = [record(7.0, 0.1, p=0.5)]  # no counterpart: no weight
    expected = ((2 / 3) * 1.0 + (1 / 2) * 0.5) / (2 / 3 + 1 / 2)
    assert matched_gap([*low, *high, *alone])[0] == pytest.approx(expected)


def test_noise_chosen_by_one_half_is_not_measured_by_the_other() -> None:
    """Values of nothing but noise: a quarter chosen by size has no gap when measured afresh."""
    noise = tokens(0.0, prompts=60, each=40)
    same = sorted(noise, key=lambda r: -abs(r["even"]))[: len(noise) // 4]
    assert np.mean([abs(r["even"]) for r in same]) > 0.07
    chosen = strongest_quarter(noise)
    assert len(chosen) == pytest.approx(len(noise) / 2, rel=0.02)  # a quarter, both ways
    value, low, high = value_gap(chosen)
    assert low < 0 < high
    assert abs(value) < 0.01
    real = [{**r, "even": r["even"] - 0.15, "odd": r["odd"] - 0.15} for r in tokens(0.3)]
    assert value_gap(strongest_quarter(real))[0] == pytest.approx(0.3, abs=0.05)


def test_tokens_without_any_value_are_never_strong() -> None:
    records = [record(0.0, 0.1, even=0.0, odd=0.0) for _ in range(9)]
    assert (
        strongest_quarter([*records, record(1.0, 0.1, even=1.0, odd=1.0)])
        == [record(1.0, 0.1, even=1.0, odd=1.0)] * 2
    )


def test_the_curve_is_the_gap_of_each_part() -> None:
    records = [{**r, "top": n / 360} for n, r in enumerate(tokens(0.2))]
    gaps = gap_curves(records, "value", "top", (0.1, 0.5, 1.0))[0]
    for limit, found in zip((0.1, 0.5, 1.0), gaps, strict=True):
        assert found == pytest.approx(value_gap([r for r in records if r["top"] <= limit])[0])


def test_what_could_have_been_seen() -> None:
    """2.8 standard errors: the interval is 3.92 of them wide."""
    interval = (0.0, -0.196, 0.196)
    assert detectable_gap(interval) == pytest.approx(0.28)
    assert detectable_note("A gap of {:.3f}.", interval) == ["A gap of 0.280."]
    assert detectable_note("{:.3f} and {:.3f}.", interval, (0.0, np.nan, np.nan)) == []


def test_verdicts() -> None:
    above, below, across = (0.2, 0.1, 0.3), (-0.2, -0.3, -0.1), (0.0, -0.1, 0.1)
    assert verdict_from_intervals([above, above]) == "replicated"
    assert verdict_from_intervals([above, across]) == "inconclusive"
    assert verdict_from_intervals([above, below]) == "not replicated"
    assert verdict_from_intervals([(0.1, float("nan"), float("nan"))]) == "inconclusive"
