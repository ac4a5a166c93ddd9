"""E4's file judges made-up curves as it says: manipulation check first, then the slope."""

from __future__ import annotations

import pytest
from lab.experiments.made_up import run
from lab.experiments.small_experiment import write

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.dose import dose_responses
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.verdicts import (
    hypothesis_verdicts,
    judge_experiment,
    results_markdown,
)

SHARES = {"anti_10": 0.16, "waits": 0.27, "RB_25": 0.28, "RB_50": 0.5}
# The arms outside the slope: success far from the line, and the share that they would have.
BESIDE = {"shuffled": (0.27, -0.3), "keeps_silent": (0.3, +0.3)}


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return read_experiment("smollm2-balance-dose")


def made_up_runs(slope: float, shares: dict[str, float] = SHARES, noise: float = 0.002) -> Runs:
    """16 seeds at levels of their own; seed s deviates from the slope by noise * (s - 7.5)."""
    records = []
    for seed in range(3000, 3016):
        level, seed_slope = 0.4 + 0.01 * (seed % 5), slope + noise * (seed - 3007.5)
        successes = {arm: (share, seed_slope * share) for arm, share in shares.items()}
        for arm, (share, gain) in (successes | BESIDE).items():
            heldout = [0.12, level + gain]
            records += run(arm, seed, heldout, updates=4, rate=1e-5, rarer_sign_share=share)
    return group_by_run(records)


@pytest.mark.parametrize(
    ("slope", "noise", "verdict"),
    [
        (+0.20, 0.002, "replicated"),
        (0.0, 0.002, "not replicated"),  # the interval excludes 5 points per unit
        (-0.20, 0.002, "not replicated"),
        (+0.04, 0.03, "inconclusive"),
    ],
)
def test_a_planted_slope_is_found(experiment, slope, noise, verdict):
    runs = made_up_runs(slope, noise=noise)
    finding = judge_experiment(runs, experiment)
    assert finding.verdict == verdict
    (response,) = dose_responses(runs, experiment)
    assert response.rollouts.value == pytest.approx(slope, abs=1e-9)
    assert response.updates.value == pytest.approx(slope, abs=1e-9)
    assert set(response.doses) == set(SHARES)  # shuffled and keeps_silent take no part
    assert f"{verdict}, at lr 1e-05 {100 * slope:+.1f} points per unit" in finding.because


def test_a_failed_manipulation_check_gives_no_verdict(experiment):
    narrow = {"anti_10": 0.27, "waits": 0.30, "RB_25": 0.31, "RB_50": 0.36}
    runs = made_up_runs(0.5, narrow)
    finding = judge_experiment(runs, experiment)
    assert finding.verdict == "untestable here"
    assert "no verdict at lr 1e-05, because the arms' mean doses differ by 0.09" in finding.because
    assert "points per unit" not in finding.because  # the slope is not read
    assert "no verdict at lr 1e-05" in results_markdown(runs, experiment)


def test_exactly_ten_points_pass(experiment):
    wide = {"anti_10": 0.25, "waits": 0.30, "RB_25": 0.31, "RB_50": 0.3501}
    assert judge_experiment(made_up_runs(0.5, wide), experiment).verdict == "replicated"


def test_hypotheses_stand_beside_the_slope(experiment):
    finding = judge_experiment(made_up_runs(-0.20), experiment)
    assert finding.verdict == "not replicated"
    assert any(note.startswith("keeps_silent is better than waits: repl") for note in finding.notes)
    assert any(note.startswith("RB_50 is better than waits: not repl") for note in finding.notes)
    assert hypothesis_verdicts(made_up_runs(-0.20), experiment)[0] == {
        "hypothesis": "success rises with rarer_sign_share",
        "verdict": "not replicated",
    }
    assert "The first hypothesis is the verdict" not in describe_rule(experiment)
    assert "rarer_sign_share, which is the verdict: the slope over anti_10" in describe_rule(
        experiment
    )


def test_seeds_without_all_four_arms_take_no_part(experiment):
    runs = made_up_runs(0.2)
    del runs[next(key for key in runs if key.arm == "RB_50")]
    (response,) = dose_responses(runs, experiment)
    assert response.rollouts.n == 15
    some_arms = {key: curve for key, curve in runs.items() if key.arm != "anti_10"}
    finding = judge_experiment(some_arms, experiment)
    assert (finding.verdict, finding.because) == (
        "inconclusive",
        "No seed has all arms of the slope yet.",
    )


def test_the_dry_run_counts_the_runs(experiment):
    text = describe_plan(experiment, experiment.design.run_keys(), None, jobs=9)
    assert "6 arms x 1 rate x 16 seeds = 96 runs, 96 of them now" in text


def test_every_arm_of_the_slope_takes_192_rows_with_signal(experiment):
    for key in experiment.design.run_keys()[: len(experiment.design.arms)]:
        config = load_config(experiment.design.base, list(experiment.design.overrides(key)))
        in_slope = key.arm in experiment.options.dose_arms
        takes_them = config.balance.tau > 0 and config.balance.sign == "advantage"
        assert in_slope == takes_them
        assert not in_slope or config.balance_target == 192
        assert (config.batch.composer, config.batch.steps) == ("shuffled", 4)


FILE = """
[experiment]
rule = "the slope decides"
rates = [1e-4]
seeds = 4
dose = "rarer_sign_share"
dose_arms = ["a", "b"]
dose_decides = true
[experiment.arms]
a = ["balance.tau=0.001"]
b = ["balance.tau=0.5"]
c = ["balance.tau=0"]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["a", "b"]', '["a", "d"]', "dose_arms: unknown arm 'd'"),
        ('["a", "b"]', '["a"]', "a slope needs two arms or more"),
        ('dose = "rarer_sign_share"', "", "dose_decides needs a dose"),
    ],
)
def test_bad_options_are_refused(tmp_path, old, new, message):
    read_experiment(write(tmp_path, FILE))
    with pytest.raises(PoiseError, match=message):
        read_experiment(write(tmp_path, FILE.replace(old, new)))
