"""An experiment's numbers and verdicts, on runs that were made up."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lab.experiments.made_up import run
from lab.experiments.small_experiment import write

from counterpoise.lab.experiments.charts import experiment_figures
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.failures import FAILURE_BIAS_NOTE
from counterpoise.lab.experiments.results import arm_results
from counterpoise.lab.experiments.verdicts import (
    describe_power,
    hypothesis_verdicts,
    judge_experiment,
    results_markdown,
)
from counterpoise.report.charts.figures import write_figures
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import t_quantile

FILE = """
[experiment]
rule = "replicated when it is"
baseline = "shuffled"
rates = [1e-4, 4e-4]
seeds = 8
margin = 0.03
hypotheses = ["RB > shuffled", "by_sign < shuffled"]
[experiment.arms]
shuffled = ["batch.composer=shuffled"]
RB = ["balance.tau=0.25"]
by_sign = ["batch.composer=by_sign"]
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return read_experiment(write(tmp_path, FILE))


def made(gain: dict[str, float], *, rates: tuple[float, ...] = (1e-4, 4e-4)) -> Runs:
    """Eight seeds; RB takes 3 steps an iteration, the others 4; at the larger rate seeds 0 to 3 of
    the baseline collapse."""
    rng = np.random.default_rng(0)
    records: list[Record] = []
    for rate in rates:
        for seed in range(8):
            for arm in ("shuffled", "RB", "by_sign"):
                end = 0.6 + gain.get(arm, 0.0) + 0.005 * rng.normal()
                if rate == 4e-4 and arm == "shuffled" and seed < 4:
                    end = 0.1
                heldout = [0.4, 0.5, 0.55, end]
                mine = run(arm, seed, heldout, 3 if arm == "RB" else 4, rate, cancellation=0.2)
                for r in mine:
                    r["heldout@0.6/0.95"] = r["heldout"] + 0.1
                    r["dropped"] = r["iteration"] * 9 if arm == "RB" else 0
                records += mine
    return group_by_run(records)


def test_results_by_hand(experiment: Experiment) -> None:
    runs = made({"RB": 0.05})
    found = {(one.arm, one.rate): one for one in arm_results(runs, experiment)}
    assert len(found) == 6
    rb = found["RB", 1e-4]
    pairs = [
        runs[key][-1]["heldout"] - runs[key._replace(arm="shuffled")][-1]["heldout"]
        for key in runs
        if (key.arm, key.rate) == ("RB", 1e-4)
    ]
    at_equal_rollouts = rb.vs_baseline["heldout"].rollouts
    half = t_quantile(1 - 0.05 / 4 / 2, 7) * np.std(pairs, ddof=1) / math.sqrt(8)  # two arms, rates
    assert at_equal_rollouts.value == pytest.approx(np.mean(pairs))
    assert at_equal_rollouts.high == pytest.approx(np.mean(pairs) + half)
    assert rb.vs_baseline["heldout@0.6/0.95"].rollouts.value == pytest.approx(np.mean(pairs))
    assert rb.measures["dropped"].value == pytest.approx(27 / 9)
    assert rb.measures["per_update"].value == pytest.approx(64 / 3)
    assert found["shuffled", 1e-4].vs_baseline == {}
    assert math.isnan(found["shuffled", 1e-4].p_value)


def test_collapses_are_counted_seed_by_seed(experiment: Experiment) -> None:
    found = {(one.arm, one.rate): one for one in arm_results(made({}), experiment)}
    assert found["shuffled", 4e-4].collapsed_runs == 4
    assert found["RB", 4e-4].collapsed_runs == 0
    assert found["RB", 4e-4].collapse_p_value == pytest.approx(2 / 16)
    assert found["RB", 1e-4].collapse_p_value == 1.0


def test_p_values_share_the_error(experiment: Experiment) -> None:
    """Holm: the clearest of four comparisons is multiplied by four."""
    found = [
        one for one in arm_results(made({"RB": 0.05}), experiment) if not math.isnan(one.p_value)
    ]
    clearest = min(found, key=lambda one: one.p_value)
    against = clearest.vs_baseline["heldout"]
    assert clearest.p_value == pytest.approx(4 * max(against.rollouts.p, against.updates.p))


@pytest.mark.parametrize(
    ("gain", "verdict", "other"),
    [
        ({"RB": 0.05}, "replicated", "by_sign is worse than shuffled: inconclusive"),
        ({"by_sign": -0.05}, "inconclusive", "by_sign is worse than shuffled: replicated"),
    ],
)
def test_verdicts(experiment: Experiment, gain: dict[str, float], verdict: str, other: str) -> None:
    finding = judge_experiment(made(gain), experiment)
    assert finding.verdict == verdict
    assert finding.numbers[0].name.startswith("RB minus shuffled, lr 0.0001, at 1/1")
    assert "smallest detectable" in finding.because
    assert any(note.startswith(other) for note in finding.notes)
    assert any("RB is better at 0.6/0.95" in note for note in finding.notes)
    assert any("shuffled 4 of 8" in note for note in finding.notes)
    assert any("drops 3 of them" in note for note in finding.notes)


def test_every_hypothesis_has_its_verdict(experiment: Experiment) -> None:
    assert hypothesis_verdicts(made({"RB": 0.05}), experiment) == [
        {"hypothesis": "RB > shuffled", "verdict": "replicated"},
        {"hypothesis": "by_sign < shuffled", "verdict": "inconclusive"},
    ]


def test_the_same_runs_are_said_in_the_table_and_have_no_interval(experiment: Experiment) -> None:
    records = [
        r
        for seed in range(3)
        for arm in ("shuffled", "RB")
        for r in run(arm, seed, [0.4, 0.5 + 0.1 * seed], 4)
    ]
    finding = judge_experiment(group_by_run(records), experiment)
    assert finding.verdict == "inconclusive"
    text = results_markdown(group_by_run(records), experiment)
    assert "| RB | 3 | 60.0 % [35.2, 84.8] | same runs | same runs |  |" in text
    assert "smallest detectable" not in text
    minus = [n for n in finding.numbers if n.name.startswith("RB minus")]
    assert [(n.value, n.low, n.high) for n in minus] == [(0.0, None, None)] * 2


def test_half_an_experiment_says_so(experiment: Experiment) -> None:
    """Nothing is refuted before every rate has been run."""
    stable = made({}, rates=(1e-4,))
    finding = judge_experiment(stable, experiment)
    assert finding.verdict == "inconclusive"
    assert "24 of 48 runs are finished." in finding.notes
    alone = {key: curve for key, curve in stable.items() if key.arm == "RB"}
    assert "No seed has both arms yet" in judge_experiment(alone, experiment).because


def test_tables(experiment: Experiment) -> None:
    text = results_markdown(made({"RB": 0.05}), experiment)
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(tables) == 2 * 2 * (2 + 3)
    assert len({line.count("|") for line in tables[:5]}) == 1
    assert "RB is better than shuffled: **replicated**. At lr 0.0001 +" in text


def test_few_seeds_print_no_share_beyond_what_can_be(experiment: Experiment) -> None:
    """Two seeds: success is cut to 0 to 100 %, differences are not."""
    ends = {("shuffled", 0): 0.2, ("shuffled", 1): 0.9, ("RB", 0): 0.9, ("RB", 1): 0.3}
    records: list[Record] = []
    for (arm, seed), end in ends.items():
        records += run(arm, seed, [0.4, end], 4)
    runs = group_by_run(records)
    text = results_markdown(runs, experiment)
    assert "| shuffled | 2 | 55.0 % [0.0, 100.0] |" in text
    assert "| RB | 2 | 60.0 % [0.0, 100.0] | +5.0 points [-3" in text
    assert "cut to 0 to 100 %; those of differences hold together and are not cut." in text
    against = {one.arm: one for one in arm_results(runs, experiment)}["RB"].vs_baseline["heldout"]
    half = t_quantile(1 - 0.05 / 4 / 2, 1) * 0.65
    assert (against.rollouts.low, against.rollouts.high) == pytest.approx(
        (0.05 - half, 0.05 + half)
    )
    for number in judge_experiment(runs, experiment).numbers:
        if "success at" in number.name or "along the run" in number.name:
            assert number.low is not None
            assert number.high is not None
            assert 0 <= number.low <= number.value <= number.high <= 1
        if "dropped" in number.name:
            assert number.low == 0.0


def test_one_seed_has_no_interval_and_no_nan(experiment: Experiment) -> None:
    runs = group_by_run(run("shuffled", 0, [0.4, 0.5], 4) + run("RB", 0, [0.4, 0.7], 4))
    text = results_markdown(runs, experiment)
    assert "+20.0 points at equal rollouts and +20.0 points at equal updates over 1 seed." in text
    assert "nan" not in text


# -- runs that failed ---------------------------------------------------------------------------


def without(runs: Runs, *failed: RunKey) -> Runs:
    return {key: curve for key, curve in runs.items() if key not in failed}


def test_failed_runs_are_told_with_what_is_compared_without_them(experiment: Experiment) -> None:
    """At the larger rate seeds 0 to 3 of the baseline collapse; seeds 0 and 5 of RB fail there, and
    seed 7 of the baseline."""
    mine, theirs = (RunKey("RB", 4e-4, 0), RunKey("RB", 4e-4, 5)), RunKey("shuffled", 4e-4, 7)
    runs = without(made({"RB": 0.05}), *mine, theirs)
    failures = {**dict.fromkeys(mine, "steps that are not | finite."), theirs: "killed by SIGKILL"}
    text = results_markdown(runs, experiment, failures)
    lines = [
        "shuffled at lr 0.0004: 1 of 8 runs failed, seed 7 (killed by SIGKILL). No arm is compared "
        "with it at this seed; 4 of 7 collapsed, or 5 of 8 if a failed run counts as collapsed.",
        "RB at lr 0.0004: 2 of 8 runs failed, seeds 0, 5 (steps that are not / finite). It is "
        "compared with shuffled over 5 seeds, without them; 0 of 6 collapsed, or 2 of 8 if a "
        "failed run counts as collapsed.",
    ]
    assert (
        f"Failed:\n\n- {lines[0]}\n- {lines[1]}\n\n{FAILURE_BIAS_NOTE}\n\n45 of 48 runs are" in text
    )
    assert "45 of 48 runs are finished, 3 failed." in text
    finding = judge_experiment(runs, experiment, failures)
    assert finding.notes[-3:] == (*lines, FAILURE_BIAS_NOTE)


def test_failures_change_no_verdict_and_no_number(experiment: Experiment) -> None:
    runs = without(made({"RB": 0.05}), RunKey("RB", 4e-4, 0))
    silent, told = (
        judge_experiment(runs, experiment),
        judge_experiment(runs, experiment, {RunKey("RB", 4e-4, 0): "why"}),
    )
    assert (silent.verdict, silent.because) == (told.verdict, told.because)
    assert silent.numbers == told.numbers


def test_an_arm_of_which_every_run_failed(experiment: Experiment) -> None:
    failures = {RunKey("RB", 1e-4, seed): f"fault {seed}" for seed in (0, 1)}
    text = results_markdown({}, experiment, failures)
    assert "RB at lr 0.0001: 2 of 2 runs failed, seed 0 (fault 0); seed 1 (fault 1). It is" in text
    assert "compared with shuffled at no seed; 0 of 0 collapsed, or 2 of 2 if" in text


def test_what_is_0_but_for_rounding_is_0(experiment: Experiment) -> None:
    records = [
        r for seed in (0, 1) for r in run("by_sign", seed, [0.4, 0.5], 4, cancellation=-8e-18)
    ]
    (found,) = arm_results(group_by_run(records), experiment)
    cancelled = found.measures["cancellation"]
    assert cancelled.low == cancelled.value == cancelled.high == -8e-18
    (line,) = [
        x
        for x in results_markdown(group_by_run(records), experiment).splitlines()
        if "| 45.0 %" in x
    ]
    assert line.split(" | ")[8:10] == ["0", ""]


def test_power_is_that_of_the_t_test(experiment: Experiment) -> None:
    t = t_quantile(1 - 0.05 / 8, 7) + t_quantile(0.8, 7)
    assert (
        f"{100 * t * 0.03 / math.sqrt(8):.1f} points if differences vary by 3.0"
        in describe_power(experiment)
    )


@pytest.mark.parametrize(("spread", "can_show"), [(0.06, False), (0.03, True)])
def test_seeds_that_could_show_only_differences_above_100_points_show_none(
    experiment: Experiment, spread: float, can_show: bool
) -> None:
    few_seeds = replace(experiment.options, seeds=2, spread=spread)
    sentence = describe_power(replace(experiment, options=few_seeds))
    assert ("2 seeds show, 4 times in 5" in sentence) is can_show
    too_few = "2 seeds are too few to show any difference: it would have to be above 100 points"
    assert (too_few in sentence) is not can_show


def test_figures(experiment: Experiment) -> None:
    drawn = experiment_figures(made({"RB": 0.05}), experiment)
    assert [f.title for f in drawn["differences"]] == [
        "Against shuffled, lr 0.0001",
        "Against shuffled, lr 0.0004",
    ]
    assert [f.title for f in drawn["curves"]] == [
        "Held-out success over rollouts, lr 0.0001",
        "Held-out success over updates, lr 0.0001",
        "Held-out success over rollouts, lr 0.0004",
        "Held-out success over updates, lr 0.0004",
    ]
    (grid,) = (f.chart.to_dict(validate=False) for f in drawn["curves"][1:2])
    assert [c["title"]["text"] for c in grid["concat"]] == ["RB"]  # the only one with fewer updates
    assert len(drawn["mechanism"]) == 2
    assert drawn["rates"] == ()  # two rates make no curve
    costs = [
        "Runs that collapsed",
        "Held-out success along the run, mean",
        "Sampled rollouts per update",
        "Rollouts dropped per update",
    ]
    assert [f.title for f in drawn["costs"]] == costs  # 192 rollouts, 9 to 12 updates
    gains = ["Success gained per 10,000 sampled rollouts", "Success gained per 100 updates"]
    longer = {
        key: [{**r, "rollouts": 100 * r["rollouts"], "updates": 10 * r["updates"]} for r in curve]
        for key, curve in made({"RB": 0.05}).items()
    }  # RB takes 90 updates, the others 120
    drawn = experiment_figures(longer, experiment)
    assert [f.title for f in drawn["costs"]] == [*costs[:2], *gains, *costs[2:]]
    found = {one.arm: one.measures for one in arm_results(longer, experiment) if one.rate == 1e-4}
    assert {arm: "gain_updates" in m for arm, m in found.items()} == {
        "shuffled": True, "RB": False, "by_sign": True,
    }  # fmt: skip


def test_figures_of_the_first_run(experiment: Experiment, tmp_path: Path) -> None:
    """Nothing to compare yet; what there is can be drawn."""
    first = dict(list(made({}, rates=(1e-4,)).items())[:1])
    drawn = experiment_figures(first, experiment)
    assert drawn["differences"] == ()
    assert drawn["curves"] == ()
    for part, charts in drawn.items():
        if charts:
            write_figures(charts, tmp_path, part)
    assert (tmp_path / "costs.png").is_file()


def test_an_arm_without_a_colour_of_its_own_takes_a_free_one(tmp_path: Path) -> None:
    """QB and the first arm without a colour of its own were both blue."""
    arms = 'QB = ["batch.composer=grouped"]\nhalves = ["batch.composer=half_groups"]\n'
    experiment = read_experiment(write(tmp_path, FILE + arms))
    runs = group_by_run([record for arm in experiment.design.arms
                         for record in run(arm, 0, [0.4, 0.5], updates=4)])  # fmt: skip
    (mechanism,) = experiment_figures(runs, experiment)["mechanism"]
    assert [arm for _, arm in mechanism.keys] == ["shuffled", "RB", "by_sign", "QB", "halves"]
    assert len({colour for colour, _ in mechanism.keys}) == 5
