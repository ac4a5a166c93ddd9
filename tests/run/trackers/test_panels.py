"""Every number has a section of the page."""

from __future__ import annotations

from run.trackers.made_up import judged

from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.run.trackers.panels import (
    OTHER_PANEL,
    PANEL_FIELDS,
    find_panel,
    name_evaluation,
    name_metrics,
)
from counterpoise.store.schema import METRICS


def test_every_field_of_metrics_has_a_panel() -> None:
    fields = [field for field in METRICS if field != "iteration"]
    assert [field for field in fields if find_panel(field) == OTHER_PANEL] == []
    assert find_panel("something_new") == OTHER_PANEL
    # No pattern hides a field that another panel names.
    for panel, patterns in PANEL_FIELDS.items():
        assert {find_panel(pattern) for pattern in patterns} == {panel}


def test_a_line_in_numbers() -> None:
    line = {
        "schema": 1, "iteration": 7, "success": 0.5, "reward_overlong": -0.25, "rollouts": 16,
        "positive_share": None, "turn_success": [0.5, 0.125], "entropy": 0.75, "flipped": 0.25,
        "cancellation_types": [[13, 0.5, 0.1]], "sample_seconds": 2.0, "sampler_mismatch": 1e-5,
    }  # fmt: skip
    assert name_metrics(line) == {
        "reward/success": 0.5,
        "reward/reward_overlong": -0.25,
        "sample/rollouts": 16,
        "sample/turn_success_1": 0.5,
        "sample/turn_success_2": 0.125,
        "update/entropy": 0.75,
        "update/sampler_mismatch": 1e-5,
        "monitor/flipped": 0.25,
        "time/sample_seconds": 2.0,
    }


def test_held_out_success_has_a_panel_for_each_way_of_sampling() -> None:
    first, other = EvaluationSetting(1.0, 1.0), EvaluationSetting(0.6, 0.95)
    found = name_evaluation(judged(3), first, first)
    assert found == {
        "heldout/success": 0.53,
        "heldout/success_low": 0.4,
        "heldout/success_high": 0.6,
        "heldout/pass_any": 0.8,
        "heldout/mixed": 0.3,
        "heldout/seconds": 5.0,
    }
    graded = name_evaluation(judged(3) | {"reward_low": -1.5, "reward_high": 2.0}, first, first)
    assert (graded["heldout/reward_low"], graded["heldout/reward_high"]) == (-1.5, 2.0)
    assert name_evaluation(judged(3), other, first)["heldout_0.6_0.95/success"] == 0.53
    assert name_evaluation(judged(3), None, None) == found  # of a folder from before settings
