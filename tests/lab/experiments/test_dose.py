"""The slope of success on a dose: exact on made-up runs, and judged by the stated rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.experiments.made_up import run
from lab.experiments.small_experiment import write

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.dose import dose_responses
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.verdicts import judge_experiment, results_markdown

FILE = """
[experiment]
rule = "the slope decides"
baseline = "by_sign"
rates = [1e-4]
seeds = 4
hypotheses = ["QB > by_sign"]
dose = "cross_advantage_ratio"
dose_effect = "falls"
dose_margin = 0.01
dose_range = 0.5
[experiment.arms]
by_sign = ["batch.composer=by_sign"]
shuffled = ["batch.composer=shuffled"]
QB = ["batch.composer=grouped"]
"""
DOSES = {"by_sign": 2.0, "shuffled": -0.25, "QB": -1.0}


def experiment_in(folder: Path, text: str = FILE) -> Experiment:
    return read_experiment(write(folder, text))


def runs_with_slope(slope: float, spread: float = 0.0, doses: dict[str, float] = DOSES) -> Runs:
    """Four seeds at levels of their own; seed s deviates from the slope by spread * (s - 1.5)."""
    records = []
    for seed in range(4):
        for arm, dose in doses.items():
            success = 0.5 + 0.05 * seed + (slope + spread * (seed - 1.5)) * dose
            heldout = [0.4, success]
            records += run(arm, seed, heldout, updates=4, cross_advantage_ratio=dose)
    return group_by_run(records)


def test_the_slope_is_taken_within_seeds(tmp_path):
    (response,) = dose_responses(runs_with_slope(-0.03, 0.002), experiment_in(tmp_path))
    assert response.rollouts.value == pytest.approx(-0.03)
    assert response.updates.value == pytest.approx(-0.03)
    assert response.rollouts.n == 4
    # Student's t with 3 degrees of freedom: 3.182 * std / sqrt(4), std of +-1, +-3 times 0.001.
    half = 3.182 * 0.001 * (20 / 3) ** 0.5 / 2
    assert response.rollouts.high == pytest.approx(-0.03 + half, abs=1e-5)
    assert response.doses == pytest.approx(DOSES)


@pytest.mark.parametrize(
    ("slope", "spread", "verdict"),
    [
        (-0.03, 0.002, "replicated"),
        (+0.03, 0.002, "not replicated"),
        (0.0, 0.002, "not replicated"),  # the interval excludes one point per unit
        (-0.01, 0.02, "inconclusive"),
    ],
)
def test_verdicts(tmp_path, slope, spread, verdict):
    (response,) = dose_responses(runs_with_slope(slope, spread), experiment_in(tmp_path))
    assert response.verdict == verdict


def test_no_verdict_where_the_arms_hardly_differ_in_dose(tmp_path):
    narrow = {"by_sign": -0.6, "shuffled": -0.8, "QB": -1.0}
    (response,) = dose_responses(runs_with_slope(-0.3, 0.002, narrow), experiment_in(tmp_path))
    assert response.verdict == "untestable here"
    assert "the arms' mean doses differ by 0.4, less than 0.5" in str(response)


def test_no_verdict_where_nothing_was_varied(tmp_path):
    same = dict.fromkeys(DOSES, -1.0)
    experiment = experiment_in(tmp_path, FILE.replace("dose_range = 0.5\n", ""))
    (response,) = dose_responses(runs_with_slope(0.0, 0.0, same), experiment)
    assert response.verdict == "untestable here"
    assert response.rollouts.n == 0
    assert "the arms' mean doses differ by 0, not at all (" in str(response)


def test_a_seed_without_all_arms_is_left_out(tmp_path):
    runs = runs_with_slope(-0.03, 0.002)
    missing = next(key for key in runs if key.arm == "shuffled" and key.seed == 2)
    del runs[missing]
    (response,) = dose_responses(runs, experiment_in(tmp_path))
    assert response.rollouts.n == 3


def test_the_result_and_the_rule_say_it(tmp_path):
    experiment, runs = experiment_in(tmp_path), runs_with_slope(-0.03, 0.002)
    rule = describe_rule(experiment)
    assert "both exclude slopes of 1 points per unit or steeper" in rule
    # The file has one hypothesis, and does not say that the slope decides.
    assert "The first hypothesis is the verdict. Success falls with" in rule
    assert "cross_advantage_ratio, judged beside the verdict: the slope" in rule
    note = next(n for n in judge_experiment(runs, experiment).notes if "cross_advantage_ratio" in n)
    assert note.startswith(
        "Success falls with cross_advantage_ratio: replicated, at lr 0.0001 -3.0"
    )
    assert "doses: QB -1, shuffled -0.25, by_sign 2" in note
    assert note in results_markdown(runs, experiment)


def test_an_unknown_dose_is_refused(tmp_path):
    with pytest.raises(PoiseError, match="did you mean 'cross_advantage_ratio'"):
        experiment_in(tmp_path, FILE.replace('"cross_advantage_ratio"', '"cross_advantage_rato"'))


@pytest.mark.parametrize("slope", [0.0, -0.03])
def test_the_same_slope_at_every_seed_decides_nothing(tmp_path, slope):
    (response,) = dose_responses(runs_with_slope(slope), experiment_in(tmp_path))
    assert response.verdict == "inconclusive"
    assert "points per unit (the same at every seed: no interval) at equal roll" in str(response)


def test_an_arm_that_is_named_twice_is_refused(tmp_path):
    twice = FILE.replace("dose_range", 'dose_arms = ["QB", "by_sign", "QB"]\ndose_range')
    with pytest.raises(PoiseError, match=r"experiment\.dose_arms names an arm twice"):
        experiment_in(tmp_path, twice)
