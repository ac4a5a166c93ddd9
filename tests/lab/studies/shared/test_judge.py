"""Matched differences by hand, and verdicts on made-up nodes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from lab.studies.token_values import HALF_SOLVED, lab

from counterpoise.lab.studies.shared.draw import draw
from counterpoise.lab.studies.shared.judge import (
    CAUSE_CLAIM,
    SIGN_MIX_CLAIM,
    SPECIFIC_CLAIM,
    binned_difference,
    judge,
    slope_within_bins,
    verdict_on,
)
from counterpoise.lab.studies.shared.measure import MAX_PROBABILITY, STUDY, measure
from counterpoise.statistics.finding import Finding, Record


def test_a_difference_is_taken_within_bins():
    values = np.array([5.0, 4.0, 1.0, 9.0, 7.0])
    is_first = np.array([True, False, True, False, True])
    bins = np.array([0, 0, 1, 1, 2])  # bin 2 has no second kind and does not count
    ones = np.ones(5)
    assert binned_difference(values, is_first, ~is_first, bins, ones) == pytest.approx(-3.5)
    # Bin 0 counts twice as often: its precision is 2 * 2 / 4 = 1 against 1 * 1 / 2.
    weights = np.array([2.0, 2.0, 1.0, 1.0, 1.0])
    difference = binned_difference(values, is_first, ~is_first, bins, weights)
    assert difference == pytest.approx((1 * 1 + 0.5 * -8) / 1.5)


def test_a_slope_ignores_the_level_of_its_bin():
    predictor = np.array([-1.0, 1.0, -1.0, 1.0])
    values = np.array([10.0, 14.0, -3.0, 1.0])
    bins = np.array([0, 0, 1, 1])
    assert slope_within_bins(values, predictor, bins, np.ones(4)) == pytest.approx(2.0)
    assert math.isnan(slope_within_bins(values, np.ones(4), bins, np.ones(4)))


@pytest.mark.parametrize(
    ("effects", "verdict"),
    [
        ([(0.1, 0.05, 0.2), (0.2, 0.01, 0.4)], "replicated"),
        ([(0.1, 0.05, 0.2), (0.1, -0.01, 0.4)], "inconclusive"),
        ([(0.0, -0.02, 0.02), (0.1, 0.01, 0.4)], "not replicated"),
        ([(0.01, 0.005, 0.02)], "inconclusive"),  # there, and too small to matter
        ([(math.nan, math.nan, math.nan)], "inconclusive"),
    ],
)
def test_verdicts(effects, verdict):
    assert verdict_on(effects, rise=0.1) == verdict


def nodes(pull_by_arm: dict[str, tuple[float, float]], noise: float = 0.02) -> list[Record]:
    """40 prompts; Delta = net pull of right and wrong rollouts, (right, wrong) by arm."""
    rng = np.random.default_rng(0)
    records = []
    for prompt in range(40):
        for right, wrong in ((1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (0, 2), (2, 2)):
            record: Record = {
                "panel": "nodes",
                "prompt": prompt,
                "p": float(rng.uniform(0.05, 0.5)),
                "right": right,
                "wrong": wrong,
                "in_batch": int(rng.integers(1, 50)),
                "push_right": 0.1 * right,
                "push_wrong": -0.1 * wrong,
            }
            for optimizer in ("adamw", "sgd"):
                for arm, (pull_right, pull_wrong) in pull_by_arm.items():
                    change = (pull_right * right + pull_wrong * wrong) / (right + wrong)
                    record[f"{optimizer} {arm}"] = change + rng.normal(scale=noise)
            records.append(record)
    return records


def verdicts(finding: Finding) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in finding.claims}


def test_cancellation_is_found():
    finding = judge(
        nodes({"joint": (0.1, -0.1), "positive_only": (0.1, 0.0), "shuffled": (0.0, 0.0)})
    )
    assert finding.verdict == "replicated"
    numbers = {number.name: number.value for number in finding.numbers}
    assert numbers["mean change, specific tokens, joint, adamw"] == pytest.approx(0.1, abs=0.01)
    assert numbers["slope on the mix of signs at fixed frequency"] == pytest.approx(0.1, abs=0.01)
    assert numbers["the same with shuffled advantages"] == pytest.approx(0.0, abs=0.01)
    assert numbers["push of the output layer that cancels, specific"] == pytest.approx(0.0)
    assert numbers["push of the output layer that cancels, shared"] > 0.5
    assert (
        len(draw(nodes({"joint": (0.1, -0.1), "positive_only": (0.1, 0), "shuffled": (0, 0)}))) == 2
    )


def test_what_wrong_rollouts_do_not_cause_is_told_apart():
    """Shared tokens rise less, but just as much less without the wrong rollouts' advantages."""
    finding = judge(
        nodes({"joint": (0.1, 0.0), "positive_only": (0.1, 0.0), "shuffled": (0.0, 0.0)})
    )
    assert verdicts(finding) == {
        SPECIFIC_CLAIM: "replicated",
        CAUSE_CLAIM: "not replicated",
        SIGN_MIX_CLAIM: "replicated",
    }


def test_no_difference_is_found_where_there_is_none():
    finding = judge(
        nodes({"joint": (0.1, 0.1), "positive_only": (0.1, 0.1), "shuffled": (0.1, 0.1)})
    )
    assert set(verdicts(finding).values()) == {"not replicated"}


def test_the_embedded_model_is_measured(tmp_path: Path):
    sizes = {**STUDY.budgets["quick"], "prompts": 6, "continuations": 2, "open": 1}
    records = measure(lab(tmp_path, HALF_SOLVED, **sizes))  # long enough to share tokens
    table = [record for record in records if record["panel"] == "nodes"]
    assert len(table) > 30
    assert all(record["p"] <= MAX_PROBABILITY + 1e-6 for record in table)
    assert all(1 <= record["right"] + record["wrong"] <= 8 for record in table)
    assert {record["right"] > 0 for record in table} == {True, False}
    # Without negative advantages nothing lowers a specific token as far as they do.
    lowered = [record for record in table if record["right"] == 0]
    joint = np.mean([record["adamw joint"] for record in lowered])
    assert joint < np.mean([record["adamw positive_only"] for record in lowered])
