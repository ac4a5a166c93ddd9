"""Collapse, waste and gain of single runs, by hand."""

from __future__ import annotations

import pytest

from counterpoise.lab.experiments.measures import MEASURES, has_collapsed, sign_test, wilson


@pytest.mark.parametrize(
    ("heldout", "fallen"),
    [
        ([0.4, 0.7, 0.7], False),
        ([0.4, 0.7, 0.51], False),  # 0.19 below its best
        ([0.4, 0.7, 0.49], True),  # 0.21 below
        ([0.4, 0.3, 0.19], True),  # below half of its start
        ([0.4, 0.3, 0.21], False),
        ([], False),
    ],
)
def test_collapse(heldout: list[float], fallen: bool) -> None:
    curve = [{"heldout": None}, *({"heldout": h} for h in heldout)]
    assert has_collapsed(curve, 0.5, 0.2) is fallen


def test_costs_by_hand() -> None:
    """100 rollouts an iteration, 4 steps in all, 30 dropped by the end, 20 + 10 without signal; too
    few of either for a gain per 10,000 or 100."""
    curve = [
        {"rollouts": 0, "updates": 0, "dropped": 0, "rows_without_signal": None, "heldout": 0.4},
        {"rollouts": 100, "updates": 0, "dropped": 10, "rows_without_signal": 20, "heldout": None},
        {"rollouts": 200, "updates": 4, "dropped": 30, "rows_without_signal": 10, "heldout": 0.5},
    ]
    found = {name: MEASURES[name].compute(curve) for name in MEASURES}
    assert found["per_update"] == 50
    assert found["dropped"] == 7.5
    assert found["silent"] == 7.5
    assert found["gain_rollouts"] is None
    assert found["gain_updates"] is None
    assert found["mean_success"] == pytest.approx(0.45)
    assert found["entropy"] is None


def test_a_gain_is_of_what_was_spent() -> None:
    """20,000 rollouts and 125 updates for 0.1; half of the rollouts is just enough."""
    curve = [
        {"rollouts": 0, "updates": 0, "heldout": 0.4},
        {"rollouts": 20_000, "updates": 125, "heldout": 0.5},
    ]
    assert MEASURES["gain_rollouts"].compute(curve) == pytest.approx(0.05)
    assert MEASURES["gain_updates"].compute(curve) == pytest.approx(0.08)
    curve[1] |= {"rollouts": 10_000, "updates": 99}
    assert MEASURES["gain_rollouts"].compute(curve) == pytest.approx(0.1)
    assert MEASURES["gain_updates"].compute(curve) is None


def test_a_run_without_updates_has_no_cost_per_update() -> None:
    curve = [{"rollouts": 100, "updates": 0, "dropped": 0, "heldout": 0.4}]
    assert MEASURES["per_update"].compute(curve) is None
    assert MEASURES["gain_updates"].compute(curve) is None


def test_shares_of_few_runs() -> None:
    """Wilson's interval as printed in tables; the sign test is a binomial tail."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert sign_test(0, 5) == pytest.approx(2 / 32)
    assert sign_test(0, 0) == 1.0
