"""Steps repeated without rows: influences against autograd, and the rule on made-up records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.removal import (
    RepeatedStep,
    datamodeling_scores,
    judge,
    measure_influences,
    rank_rows,
    removal_effects,
)
from counterpoise.lab.studies.trace import draw_answers
from counterpoise.model.scoring import score_logprobs
from counterpoise.statistics.finding import Record


def made_up(strength: float, effect: float, problems: int = 30, subsets: int = 16) -> list[Record]:
    """Answers that follow the output layer by `strength`, and removals with an `effect`."""
    rng = np.random.default_rng(0)
    records: list[Record] = []
    for optimizer in ("sgd", "adamw"):
        for problem in range(problems):
            about = {"optimizer": optimizer, "batch": 1, "problem": f"p{problem}"}
            for subset in range(subsets):
                push = rng.normal()
                records.append(
                    {
                        **about, "subset": subset, "moved": strength * push + rng.normal(),
                        "output_layer": push, "all_parameters": push,
                        "advantage": rng.normal(), "length": rng.normal(),
                    }
                )  # fmt: skip
            for ranking in ("output_layer", "all_parameters", "advantage", "length", "random"):
                sign = effect if ranking == "output_layer" else 0.0
                for share in (0.1, 0.25, 0.5):
                    for end, shift in (("top", -sign / 2), ("bottom", sign / 2)):
                        moved = shift + 0.1 * rng.normal()
                        records.append(
                            {**about, "ranking": ranking, "share": share, "end": end,
                             "moved": moved}
                        )  # fmt: skip
    return records


@pytest.mark.parametrize(
    ("strength", "effect", "verdict"),
    [
        (2.0, 1.0, "replicated"),
        (0.0, 1.0, "inconclusive"),
        (2.0, -1.0, "not replicated"),
    ],
)
def test_the_rule(strength: float, effect: float, verdict: str) -> None:
    records = made_up(strength, effect)
    assert judge(records).verdict == verdict
    effects = removal_effects(records, "sgd", "output_layer")
    assert np.mean(list(effects.values())) == pytest.approx(effect, abs=0.1)
    scores = list(datamodeling_scores(records, "sgd", "output_layer").values())
    assert (np.mean(scores) > 0.7) == (strength > 0)


def test_all_parameters_predict_what_a_small_step_loses_without_a_row(tmp_path: Path) -> None:
    options = ("model.device=cpu", "sample.max_new_tokens=48", "task.levels=[1]")
    sizes = {"prompts": 3, "batches": 1, "answers": 8, "subsets": 1}
    lab = Lab("embedded", "quick", tmp_path, sizes=sizes, options=options)
    answers = [answer for answer in draw_answers(lab) if answer.right]
    rows = lab.rows(3)
    influences = measure_influences(lab, rows, answers)
    before = score_logprobs(lab.policy, [answer.row for answer in answers], 1.0, 4096)
    learning_rate = 0.005  # small enough for the first order
    step = RepeatedStep(lab, rows, answers, before, "sgd", learning_rate)
    removed = [0, len(rows) - 1]
    lengths = np.array([answer.row.num_tokens for answer in answers])
    measured = (step.without([]) - step.without(removed)) * lengths
    predicted = learning_rate * influences["all_parameters"][removed].sum(axis=0)
    assert np.corrcoef(predicted, measured)[0, 1] > 0.99
    assert predicted @ measured / (predicted @ predicted) == pytest.approx(1.0, rel=0.05)
    orders = rank_rows(influences, answers, np.arange(len(rows)))
    assert sorted(orders["output_layer"].tolist()) == list(range(len(rows)))
