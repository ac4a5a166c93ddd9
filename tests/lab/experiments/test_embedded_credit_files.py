"""The experiment on token credit trains every method that the credit study compares."""

from __future__ import annotations

from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.studies.credit.arms import COMMON_OPTIONS, credit_arms

ALL_ONES = "serl"  # without turns, its weights are 1


def test_the_arms_are_those_of_the_credit_study() -> None:
    arms = read_experiment("embedded-credit").design.arms
    studied = {
        name: tuple(option for option in arm.options if option not in COMMON_OPTIONS)
        for name, arm in credit_arms().items()
        if name != ALL_ONES
    }
    studied["uniform"] = ("credit.weights=uniform",)
    assert dict(arms) == studied


def test_the_pilot_differs_in_its_rates_and_seeds_alone() -> None:
    experiment, pilot = read_experiment("embedded-credit"), read_experiment("embedded-credit-pilot")
    assert experiment.design.arms == pilot.design.arms
    assert experiment.run_config == pilot.run_config
    assert not set(experiment.design.seeds) & set(pilot.design.seeds)
    assert len(experiment.design.seeds) == 16
