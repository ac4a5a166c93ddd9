"""Arms: what is read beside success, and arms that are really trained."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from lab.experiments.made_up import run
from lab.studies.token_values import random_model

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.curves import (
    group_by_run,
    last_value,
    mean_over_run,
    values_by_seed,
)
from counterpoise.lab.studies import interventions
from counterpoise.lab.studies.arms import arm_numbers, final_success, measure_arms, side_metric
from counterpoise.lab.studies.credit import measure as credit
from counterpoise.lab.studies.harness import Lab


def test_success_at_the_end() -> None:
    runs = group_by_run([*run("QB", 0, [0.4, 0.5, 0.6], 4), *run("QB", 1, [0.4, 0.7, 0.8], 4)])
    found = final_success(runs, "QB", 1e-4)
    assert found.value == pytest.approx(0.7)
    assert (found.low, found.high) == (0.0, 1.0)  # two seeds say that all is possible, and no more


def test_numbers_leave_out_what_was_not_measured() -> None:
    runs = group_by_run(run("shuffled", 0, [0.4, 0.5, 0.6], 4) + run("QB", 0, [0.4, 0.5, 0.7], 4))
    names = [n.name for n in arm_numbers(runs)]
    assert "QB minus shuffled, lr 0.0001, equal updates" in names
    assert "QB, lr 0.0001: share of groups split" in names
    assert not any("cancellation" in name for name in names)
    assert side_metric(runs, "QB", 1e-4, "cancellation") is None


@pytest.mark.parametrize(
    ("study", "option", "message"),
    [
        (interventions, "update.lr=1e-3", "set update.lr: use --size rates"),
        (interventions, "balance.tau=0.1", "set balance.tau: leave it out"),
        (credit, "credit.weights=gtpo", "set credit.weights: leave it out"),
    ],
)
def test_options_that_the_arms_set_are_refused(
    tmp_path: Path, study: ModuleType, option: str, message: str
) -> None:
    """They were stored with the records and changed nothing, or the baseline as well."""
    sizes = study.STUDY.budgets["quick"]
    with pytest.raises(PoiseError, match=message):
        study.measure(Lab("embedded", "quick", tmp_path, sizes=sizes, options=(option,)))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_arms_are_trained(tmp_path: Path) -> None:
    sizes = {"rates": [1e-4], "seeds": 1, "iterations": 1, "prompts": 4, "target": 16, "steps": 2,
             "evaluate_every": 0, "heldout": 4, "samples": 2, "monitor_every": 1}  # fmt: skip
    _, model, options = random_model()
    lab = Lab(model, "quick", tmp_path, sizes=sizes, options=(*options, "store.report=false"))
    runs = group_by_run(measure_arms(lab, ("shuffled", "QB")))
    assert values_by_seed(runs, "QB", 1e-4, mean_over_run("split")) == {0: 0}
    assert values_by_seed(runs, "shuffled", 1e-4, mean_over_run("split"))[0] > 0
    for arm in ("shuffled", "QB"):
        assert 0 <= values_by_seed(runs, arm, 1e-4, mean_over_run("cancellation"))[0] <= 1
        assert values_by_seed(runs, arm, 1e-4, last_value("updates")) == {0: 2}
        assert 0 <= values_by_seed(runs, arm, 1e-4, last_value("heldout"))[0] <= 1
