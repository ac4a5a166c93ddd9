"""Verdicts of the sign partition on made-up runs."""

from __future__ import annotations

import numpy as np
import pytest
from lab.experiments.made_up import run

from counterpoise.lab.studies import sign_partition
from counterpoise.statistics.finding import Record


def records(drop: float, noise: float, seeds: int) -> list[Record]:
    rng = np.random.default_rng(0)
    made: list[Record] = []
    for seed in range(seeds):
        for arm in sign_partition.TESTED_ARMS:
            end = 0.7 + noise * rng.normal() - (drop if arm == "by_sign" else 0.0)
            made += run(arm, seed, [0.4, 0.55, end], 4)
    return made


@pytest.mark.parametrize(
    ("drop", "noise", "seeds", "verdict"),
    [
        (0.06, 0.005, 8, "replicated"),
        (0.0, 0.005, 8, "not replicated"),
        (-0.05, 0.005, 8, "not replicated"),
        (0.06, 0.05, 2, "inconclusive"),
    ],
)
def test_verdicts(drop: float, noise: float, seeds: int, verdict: str) -> None:
    found = sign_partition.judge(records(drop, noise, seeds))
    assert found.verdict == verdict
    assert "by_sign minus QB" in found.notes[1]


def test_both_arm_studies_share_their_runs() -> None:
    from counterpoise.lab.studies import interventions

    assert sign_partition.STUDY.budgets is interventions.STUDY.budgets
    assert {"shuffled", "QB"} <= set(sign_partition.TESTED_ARMS) & set(interventions.TESTED_ARMS)
