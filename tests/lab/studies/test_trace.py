"""The study of held-out pushes: its rule on made-up records, and one small real measurement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.trace import judge, mean_correlation, measure
from counterpoise.statistics.finding import Record


def made_up(noise: dict[str, float], problems: int = 60, batches: int = 3) -> list[Record]:
    """Real changes that follow the prediction with as much noise as each optimizer is given."""
    rng = np.random.default_rng(0)
    records = []
    for optimizer, sigma in noise.items():
        for batch in range(1, batches + 1):
            for problem in range(problems):
                predicted = rng.normal()
                records.append(
                    {
                        "optimizer": optimizer, "batch": batch, "problem": f"p{problem}",
                        "kind": "right", "moved": predicted + sigma * rng.normal(),
                        "output_layer": predicted, "all_parameters": predicted,
                    }
                )  # fmt: skip
    return records


@pytest.mark.parametrize(
    ("noise", "verdict"),
    [
        ({"sgd": 0.1, "adamw": 1.0}, "replicated"),
        ({"sgd": 0.1, "adamw": 30.0}, "not replicated"),
        ({"sgd": 0.1, "adamw": 3.2}, "inconclusive"),
    ],
)
def test_the_rule(noise: dict[str, float], verdict: str) -> None:
    finding = judge(made_up(noise))
    assert finding.verdict == verdict
    assert finding.claims[0].verdict == "replicated"
    assert "60 held-out problems" in finding.because


def test_a_real_step_is_predicted_by_all_parameters_to_first_order(tmp_path: Path) -> None:
    """A step of SGD that is small enough moves answers as the gradient through all layers says."""
    options = ("model.device=cpu", "sample.max_new_tokens=48", "task.levels=[1]")
    sizes = {"prompts": 4, "batches": 1, "answers": 12}
    lab = Lab("embedded", "quick", tmp_path, sizes=sizes, options=options)
    weights = {name: weight.clone() for name, weight in lab.policy.model.named_parameters()}
    records = measure(lab)
    for name, weight in lab.policy.model.named_parameters():
        assert torch.equal(weight, weights[name]), name
    assert {record["kind"] for record in records} == {"right", "wrong"}
    sgd = [record for record in records if record["optimizer"] == "sgd"]
    predicted = np.array([record["all_parameters"] for record in sgd])
    moved = np.array([record["moved"] for record in sgd])
    assert np.corrcoef(predicted, moved)[0, 1] > 0.95
    slope = (predicted @ moved) / (predicted @ predicted)
    assert slope == pytest.approx(lab.learning_rates["sgd"], rel=0.2)
    value, low, high = mean_correlation(records, "sgd", "all_parameters")
    assert low <= value <= high
    assert value > 0.8
