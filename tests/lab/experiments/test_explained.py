"""What an ingredient explains of a gain: exact shares, and the rule on made-up runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.experiments.made_up import run
from lab.experiments.small_experiment import EXPERIMENT, write

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.explained import explained_gains
from counterpoise.lab.experiments.verdicts import judge_experiment, results_markdown

FILE = """
[experiment]
rule = "what waiting is"
baseline = "shuffled"
rates = [1e-4]
seeds = 6
hypotheses = ["waits > shuffled"]
explains = "waits"
[experiment.arms]
shuffled = ["batch.composer=shuffled"]
waits = ["balance.tau=0.001"]
two_steps = ["batch.steps=2"]
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return read_experiment(write(tmp_path, FILE))


def runs_with_gains(waits: float, two_steps: float, noise: float = 0.002) -> Runs:
    """Six seeds; gains over shuffled scatter by `noise`, alike for both arms but for their size."""
    records = []
    for seed in range(6):
        level = 0.5 + 0.03 * seed
        luck = noise * ((seed * 5) % 6 - 2.5)
        for arm, gain in (
            ("shuffled", 0.0),
            ("waits", waits + luck),
            ("two_steps", two_steps - luck),
        ):
            records += run(arm, seed, [0.4, level + gain], updates=4)
    return group_by_run(records)


def test_the_share_is_a_ratio_of_means(experiment):
    (gain,) = explained_gains(runs_with_gains(0.10, 0.05), experiment)
    assert gain.shares == pytest.approx({"rollouts": 0.5, "updates": 0.5})
    assert (gain.arm, gain.reference, gain.seeds) == ("two_steps", "waits", 6)


@pytest.mark.parametrize(
    ("waits", "two_steps", "noise", "verdict"),
    [
        (0.10, 0.10, 0.002, "sufficient"),
        (0.10, 0.00, 0.002, "excluded"),
        (0.10, 0.05, 0.002, "inconclusive"),
        (0.10, 0.10, 0.03, "inconclusive"),  # too noisy to tell
        (0.00, 0.10, 0.002, "inconclusive"),  # nothing to explain
        (0.10, 0.10, 0.0, "inconclusive"),  # the same gain at every seed has no interval
    ],
)
def test_the_verdicts(experiment, waits, two_steps, noise, verdict):
    runs = runs_with_gains(waits, two_steps, noise)
    (gain,) = explained_gains(runs, experiment)
    assert gain.verdict == verdict
    assert f": {verdict}." in results_markdown(runs, experiment)
    assert any(note.endswith(f": {verdict}.") for note in judge_experiment(runs, experiment).notes)


def test_other_starts_and_missing_runs_take_no_part(experiment):
    runs = runs_with_gains(0.10, 0.10)
    other = next(key for key in runs if (key.arm, key.seed) == ("waits", 0))
    runs[other] = [{**record, "start": "other weights"} for record in runs[other]]
    del runs[next(key for key in runs if (key.arm, key.seed) == ("two_steps", 5))]
    (gain,) = explained_gains(runs, experiment)
    assert gain.seeds == 4


def test_the_rule_is_spelled_out_and_a_wrong_arm_refused(experiment, tmp_path):
    assert "(waits - shuffled), seed by seed: sufficient when" in describe_rule(experiment)
    with pytest.raises(PoiseError, match=r"experiment\.explains: unknown arm 'wait'"):
        read_experiment(write(tmp_path, FILE.replace('explains = "waits"', 'explains = "wait"')))
    with pytest.raises(PoiseError, match="shuffled is the baseline and gains nothing"):
        read_experiment(
            write(tmp_path, FILE.replace('explains = "waits"', 'explains = "shuffled"'))
        )
    two_arms = EXPERIMENT.replace("seeds = 2", 'seeds = 2\nexplains = "QB"')
    with pytest.raises(PoiseError, match="no arm that could explain the gain of QB"):
        read_experiment(write(tmp_path, two_arms))
