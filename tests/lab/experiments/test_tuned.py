"""Tuned against tuned: rates chosen on one half of the seeds, judged on the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.experiments.made_up import run
from lab.experiments.small_experiment import write

from counterpoise.lab.experiments.charts import experiment_figures
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.tuned import compare_tuned
from counterpoise.lab.experiments.verdicts import (
    judge_experiment,
    judge_hypothesis,
    results_markdown,
)

FILE = """
[experiment]
rule = "tuned against tuned"
baseline = "shuffled"
rates = [1e-4, 4e-4]
seeds = 8
margin = 0.03
tuned = true
hypotheses = ["RB > shuffled"]
[experiment.arms]
shuffled = ["batch.composer=shuffled"]
RB = ["balance.tau=0.25"]
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return read_experiment(write(tmp_path, FILE))


def runs_ending_at(success: dict[tuple[str, float], float], luck: dict | None = None) -> Runs:
    """Eight seeds; a seed shifts every run alike, `luck` shifts (arm, rate, seed) on its own."""
    records = []
    for (arm, rate), value in success.items():
        for seed in range(8):
            shift = 0.01 * (seed % 3) + (luck or {}).get((arm, rate, seed), 0.0)
            heldout = [0.4, value + shift + 0.002 * ((seed * 7 + len(arm)) % 5)]
            records += run(arm, seed, heldout, updates=4, rate=rate)
    return group_by_run(records)


def test_each_arm_is_judged_at_its_own_best_rate(experiment):
    # At either rate alone RB looks better or worse; each at its best, they are 5 points apart.
    runs = runs_ending_at(
        {("shuffled", 1e-4): 0.70, ("shuffled", 4e-4): 0.50, ("RB", 1e-4): 0.60, ("RB", 4e-4): 0.75}
    )
    (tuned,) = compare_tuned(runs, experiment)
    assert tuned.rates == (4e-4, 4e-4)
    assert tuned.baseline_rates == (1e-4, 1e-4)
    assert tuned.comparison.rollouts.n == 8
    assert tuned.comparison.rollouts.value == pytest.approx(0.05, abs=0.004)
    assert judge_hypothesis(experiment.hypotheses[0], runs, experiment) == "replicated"
    assert judge_experiment(runs, experiment).verdict == "replicated"


def test_what_is_printed_is_what_decides(experiment):
    # RB is ahead at the smaller rate, by 20 points; each at its best rate, it is 10 behind.
    runs = runs_ending_at(
        {("shuffled", 1e-4): 0.40, ("shuffled", 4e-4): 0.85, ("RB", 1e-4): 0.60, ("RB", 4e-4): 0.75}
    )
    finding = judge_experiment(runs, experiment)
    assert finding.verdict == "not replicated"
    reason = "each at its best rate (0.0004 against 0.0004) -9.9 points [-10.3, -9.6]"
    assert finding.because.startswith(f"RB minus shuffled: {reason}")
    bullet = results_markdown(runs, experiment).splitlines()[0]
    assert bullet.startswith("- RB is better than shuffled: **not replicated**. ")
    assert reason[1:] in bullet
    for text in (finding.because, bullet, *finding.notes):
        assert "+20." not in text


def test_the_rule_is_one_rule(experiment):
    rule = describe_rule(experiment)
    assert "judged on the odd ones" in rule
    assert "at some rate" not in rule
    assert "comparisons together" not in rule  # one other arm: one comparison, whatever the rates


def test_the_same_difference_at_every_seed_decides_nothing(experiment):
    ends = {"shuffled": 0.6, "RB": 0.7}
    runs = group_by_run(
        [
            record
            for arm, end in ends.items()
            for rate in (1e-4, 4e-4)
            for seed in range(8)
            for record in run(arm, seed, [0.4, end], updates=4, rate=rate)
        ]
    )
    finding = judge_experiment(runs, experiment)
    assert finding.verdict == "inconclusive"
    assert "without spread there is no verdict" in finding.because


def test_a_rate_is_never_judged_on_the_seeds_that_chose_it(experiment):
    # Luck at the even seeds makes 4e-4 look best for RB there; judged on odd seeds it is not.
    luck = {("RB", 4e-4, seed): 0.2 for seed in range(0, 8, 2)}
    runs = runs_ending_at(
        {("shuffled", 1e-4): 0.7, ("shuffled", 4e-4): 0.5, ("RB", 1e-4): 0.7, ("RB", 4e-4): 0.6},
        luck,
    )
    (tuned,) = compare_tuned(runs, experiment)
    assert tuned.rates == (4e-4, 1e-4)
    # Odd seeds at the lucky rate: -0.1; even seeds at the rate the odd ones chose: 0.
    assert tuned.comparison.rollouts.value == pytest.approx(-0.05, abs=0.004)


def test_nothing_is_decided_before_every_run_is_there(experiment):
    runs = runs_ending_at(
        {("shuffled", 1e-4): 0.7, ("shuffled", 4e-4): 0.5, ("RB", 1e-4): 0.6, ("RB", 4e-4): 0.9}
    )
    del runs[next(iter(runs))]
    assert compare_tuned(runs, experiment) == []
    assert judge_hypothesis(experiment.hypotheses[0], runs, experiment) == "inconclusive"


def test_a_seed_whose_runs_began_with_different_weights_takes_no_part(experiment):
    runs = runs_ending_at(
        {("shuffled", 1e-4): 0.70, ("shuffled", 4e-4): 0.50, ("RB", 1e-4): 0.60, ("RB", 4e-4): 0.75}
    )
    other_start = next(key for key in runs if (key.arm, key.rate, key.seed) == ("RB", 4e-4, 3))
    runs[other_start] = [
        {**record, "start": "other weights", "heldout": 0.0} for record in runs[other_start]
    ]
    (tuned,) = compare_tuned(runs, experiment)
    assert tuned.comparison.rollouts.n == 7
    assert tuned.comparison.rollouts.value == pytest.approx(0.05, abs=0.004)
    for key in [key for key in runs if key.arm == "RB"]:
        runs[key] = [{**record, "start": "other weights"} for record in runs[key]]
    finding = judge_experiment(runs, experiment)
    assert finding.because.endswith("no seed has all its runs from the same weights.")


def test_success_is_drawn_over_the_learning_rates(tmp_path: Path) -> None:
    rates = FILE.replace("[1e-4, 4e-4]", "[1e-4, 2e-4, 4e-4]")
    experiment = read_experiment(write(tmp_path, rates))
    success = {("shuffled", 1e-4): 0.6, ("shuffled", 2e-4): 0.7, ("shuffled", 4e-4): 0.5}
    runs = runs_ending_at(success | {("RB", rate): value for (_, rate), value in success.items()})
    (figure,) = experiment_figures(runs, experiment)["rates"]
    charts = figure.chart.to_dict(validate=False)
    (chart,) = charts["concat"]  # the setting at which success was measured
    line = next(layer for layer in chart["layer"] if layer["mark"]["type"] == "line")
    points = charts["datasets"][line["data"]["name"]]
    assert [point["at"] for point in points] == [1e-4, 2e-4, 4e-4]
    assert points[1]["value"] == pytest.approx(0.7 + 0.01 * 7 / 8 + 0.002 * 15 / 8, abs=0.004)
    assert line["encoding"]["x"]["scale"]["type"] == "log"
    assert line["encoding"]["x"]["axis"]["values"] == [1e-4, 2e-4, 4e-4]
