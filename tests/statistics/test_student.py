"""Student's t against printed tables, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from counterpoise.statistics.student import student_mean, t_quantile

TABLE = {  # (p, degrees of freedom) -> t, as printed in statistical tables
    (0.975, 1): 12.7062,
    (0.975, 2): 4.30265,
    (0.975, 3): 3.18245,
    (0.975, 4): 2.77645,
    (0.975, 5): 2.57058,
    (0.975, 7): 2.36462,
    (0.975, 10): 2.22814,
    (0.975, 30): 2.04227,
    (0.975, 120): 1.97993,
    (0.995, 7): 3.49948,
    (0.9875, 7): 2.84124,
    (0.80, 7): 0.89603,
    (0.80, 2): 1.06066,
}


@pytest.mark.parametrize(("at", "t"), TABLE.items())
def test_quantiles_of_the_tables(at: tuple[float, int], t: float) -> None:
    assert t_quantile(*at) == pytest.approx(t, rel=5e-5)


def test_the_middle_and_the_other_side() -> None:
    assert t_quantile(0.5, 4) == pytest.approx(0, abs=1e-12)
    assert t_quantile(0.025, 6) == pytest.approx(-t_quantile(0.975, 6))


def test_mean_by_hand() -> None:
    """std 1, error 1 / sqrt(3)."""
    found = student_mean([1.0, 2.0, 3.0])
    half = 4.30265 / math.sqrt(3)
    assert found.value == 2.0
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), rel=1e-5)
    assert found.detectable == pytest.approx((4.30265 + 1.06066) / math.sqrt(3), rel=1e-5)


def test_one_seed_has_no_interval() -> None:
    found = student_mean([0.4])
    assert found.value == 0.4
    assert math.isnan(found.low)
    assert math.isnan(found.detectable)


def test_no_p_value_is_below_0() -> None:
    """Far from 0 the probability of less comes to 1 + 2e-16."""
    for n in range(2, 60):
        assert 0 <= student_mean([1 + 0.01 * (i % 3) for i in range(n)]).p <= 1


def test_intervals_cover_and_power_is_what_it_says() -> None:
    """Five seeds, 4,000 times: the truth is inside 95 %, and an effect of `seen` shows in 80 %."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(4000, 5))
    found = [student_mean(x.tolist()) for x in drawn]
    inside = np.mean([m.low < 0 < m.high for m in found])
    assert inside == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))
    true = (t_quantile(0.975, 4) + t_quantile(0.8, 4)) / math.sqrt(5)  # with the true std, 1
    shown = np.mean([student_mean((x + true).tolist()).low > 0 for x in drawn])
    assert shown == pytest.approx(0.8, abs=0.05)  # the t approximation of power, five seeds
