"""The choice of rates, by its rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.experiments.made_up import run
from lab.experiments.small_experiment import EXPERIMENT, write

from counterpoise.lab.experiments.curves import group_by_run
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.failures import PILOT_BIAS_NOTE, describe_pilot_failures
from counterpoise.lab.experiments.pilot import choose_rates, pilot_markdown

SLOW = [0.4, 0.42, 0.43, 0.44]
LEARNS, FALLS, NEVER = [0.4, 0.5, 0.58, 0.55], [0.4, 0.6, 0.5, 0.3], [0.4, 0.3, 0.1, 0.0]


@pytest.mark.parametrize(
    ("curves", "stable", "edge"),
    [
        ({1e-6: LEARNS, 1e-5: LEARNS, 1e-4: FALLS}, 1e-5, 1e-4),
        ({1e-6: LEARNS, 1e-5: FALLS, 1e-4: LEARNS}, 1e-6, 1e-5),
        ({1e-6: LEARNS, 1e-5: NEVER, 1e-4: FALLS}, 1e-6, 1e-4),
        ({1e-6: LEARNS, 1e-5: LEARNS}, 1e-5, None),
        ({1e-6: FALLS, 1e-5: NEVER}, None, 1e-6),
        ({1e-6: SLOW, 1e-5: LEARNS}, 1e-5, None),
        ({1e-6: SLOW, 1e-5: FALLS}, None, 1e-5),
    ],
)
def test_the_rule(
    tmp_path: Path, curves: dict[float, list[float]], stable: float | None, edge: float | None
) -> None:
    """One of two seeds is enough to fall; a rate learns only if both do."""
    experiment = read_experiment(write(tmp_path, EXPERIMENT + "\n"))
    records = [
        r
        for rate, curve in curves.items()
        for seed, mine in enumerate((LEARNS if curve is FALLS else curve, curve))
        for r in run("shuffled", seed, mine, 4, rate)
    ]
    runs = group_by_run(records)
    choice = choose_rates(runs, experiment)
    assert (choice.stable, choice.edge) == (stable, edge)
    assert f"By the rule: {choice}." in pilot_markdown(choice, runs, {}, experiment)


def test_a_rate_that_was_not_evaluated_is_not_stable(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, EXPERIMENT + "\n"))
    unseen = [{**r, "heldout": None} for r in run("shuffled", 0, LEARNS, 4, 1e-4)]
    choice = choose_rates(group_by_run(run("shuffled", 0, LEARNS, 4, 1e-5) + unseen), experiment)
    assert (choice.stable, choice.edge) == (1e-5, None)
    assert [one.rate for one in choice.outcomes] == [1e-5]


def test_failed_runs_of_a_pilot_are_told(tmp_path: Path) -> None:
    """The rule looks at what finished; the page says what did not."""
    experiment = read_experiment(write(tmp_path, EXPERIMENT + "\n"))
    runs = group_by_run(run("shuffled", 0, LEARNS, 4, 1e-4))
    failures = {RunKey("shuffled", 1e-4, 1): "steps not finite"}
    text = pilot_markdown(choose_rates(runs, experiment), runs, failures, experiment)
    assert "By the rule: stable 0.0001" in text
    told = "- shuffled at lr 0.0001: 1 of 2 runs failed, seed 1 (steps not finite).\n"
    assert text.endswith(f"Failed:\n\n{told}\n{PILOT_BIAS_NOTE}\n")


def test_a_pilot_of_one_arm_lists_its_runs(tmp_path: Path) -> None:
    one_arm = EXPERIMENT.replace('QB = ["batch.composer=grouped"]\n', "")
    pilot_text = one_arm.replace('hypotheses = ["QB > shuffled"]', "pilot = true")
    experiment = read_experiment(write(tmp_path, pilot_text))
    runs = group_by_run(
        [r for seed, curve in enumerate((LEARNS, FALLS)) for r in run("shuffled", seed, curve, 4)]
    )
    assert pilot_markdown(choose_rates(runs, experiment), runs, {}, experiment) == (
        "| rate | start | best | end | learn | fall |\n"
        "|---|---|---|---|---|---|\n"
        "| 0.0001 | 40.0, 40.0 | 58.0, 60.0 | 55.0, 30.0 | 2 of 2 | 1 of 2 |\n"
        "\n"
        "By the rule: no rate is stable, edge 0.0001.\n"
    )


def test_failed_runs_are_told_arm_by_arm() -> None:
    failures = {RunKey(arm, 1e-4, seed): f"{arm} broke" for arm in ("QB", "RB") for seed in (3, 4)}
    assert describe_pilot_failures(failures, {}) == [
        "QB at lr 0.0001: 2 of 2 runs failed, seeds 3, 4 (QB broke).",
        "RB at lr 0.0001: 2 of 2 runs failed, seeds 3, 4 (RB broke).",
    ]
