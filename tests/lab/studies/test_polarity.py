"""The polarity study: verdicts on simulated masses, and one small real run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.studies.token_values import random_lab

from counterpoise.errors import PoiseError
from counterpoise.lab.studies import polarity
from counterpoise.lab.studies.harness import Lab
from counterpoise.microscope.categories import CATEGORIES
from counterpoise.report.charts.vega import vega_specification
from counterpoise.statistics.finding import Record


def simulated(positive: dict[str, float], joint: dict[str, float]) -> list[Record]:
    """Boosted mass by category under each update, in 40 prompts of different weight."""
    weight_P = np.random.default_rng(0).uniform(0.5, 2.0, 40)
    return [
        {
            "optimizer": optimizer,
            "update": update,
            "batch": 1,
            "tagger": "rules",
            "prompt": f"1:{prompt}",
            "category": category,
            "sign": sign,
            "tokens": 10,
            "boosted_mass": mass.get(category, 0.0) * weight_P[prompt],
            "delta": 0.1,
            "boosted": 5,
            "suppressed": 3,
            "flipped": 2 if update == "positive" else 4,
        }
        for optimizer in polarity.OPTIMIZERS
        for update, mass in (("positive", positive), ("joint", joint))
        for prompt in range(40)
        for category in CATEGORIES
        for sign in polarity.SIGNS
    ]


TEMPLATE = {"template": 6.0, "function": 2.0, "content": 1.0, "number": 1.0}
REASONING = {"template": 2.0, "function": 2.0, "content": 3.0, "number": 2.0, "latex": 1.0}


@pytest.mark.parametrize(
    ("positive", "joint", "verdict"),
    [
        (TEMPLATE, REASONING, "replicated"),
        (REASONING, TEMPLATE, "not replicated"),
        (TEMPLATE, TEMPLATE, "inconclusive"),
        ({**REASONING, "template": 4.0}, {**TEMPLATE, "template": 0.5}, "not replicated"),
        ({**TEMPLATE, "template": 0.03}, REASONING, "untestable here"),
        ({**TEMPLATE, "template": 0.05}, REASONING, "not replicated"),
    ],
)
def test_the_verdict_follows_both_shares(positive, joint, verdict) -> None:
    found = polarity.judge(simulated(positive, joint))
    assert found.verdict == verdict
    numbers = {n.name: n for n in found.numbers}
    share = numbers["template share of boosted mass, positive-only, adamw"]
    assert share.value == pytest.approx(positive["template"] / sum(positive.values()), rel=0.03)
    change = numbers["change of reasoning share, sgd"]
    assert change.low is not None
    assert change.high is not None
    assert change.low <= change.value <= change.high
    assert numbers["flipped in positive rollouts, positive-only, adamw"].value == 0.2
    assert numbers["flipped in positive rollouts, joint, adamw"].value == 0.4


def test_a_model_that_is_sure_of_its_template_is_named() -> None:
    sure = {**REASONING, "template": 0.001}
    notes = polarity.judge(simulated(sure, sure)).notes
    assert any("certain of its template" in note for note in notes)
    assert not any("certain" in n for n in polarity.judge(simulated(TEMPLATE, REASONING)).notes)


def test_a_share_that_may_be_one_percent_leaves_something_to_lose() -> None:
    falls, rises = (-0.003, -0.004, -0.002), (0.03, 0.02, 0.04)
    assert polarity.verdict_from_shares(0.0099, falls, rises) == "untestable here"
    assert polarity.verdict_from_shares(0.0101, falls, rises) == "replicated"
    assert polarity.verdict_from_shares(None, falls, rises) == "replicated"  # too few prompts


def test_a_batch_without_signal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "rows", lambda *_, **__: [])
    with pytest.raises(PoiseError, match="the batch has no rows"):
        polarity.measure(Lab("embedded", "quick", tmp_path, sizes={"prompts": 4, "batches": 1}))


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Lab, list[Record]]:
    small = random_lab(tmp_path_factory.mktemp("polarity"), batches=1)
    before = [p.detach().clone() for p in small.policy.model.parameters()]
    records = list(polarity.measure(small))
    for p, was in zip(small.policy.model.parameters(), before, strict=True):
        assert torch.equal(p, was)
    return small, records


@pytest.mark.slow
def test_every_token_is_counted_once_in_each_update(measured) -> None:
    small, records = measured
    tokens = dict.fromkeys(polarity.SIGNS, 0)
    for row in small.rows(6):
        tokens["positive" if row.advantage > 0 else "negative"] += row.num_tokens
    for optimizer in polarity.OPTIMIZERS:
        for update in polarity.UPDATES:
            for sign in polarity.SIGNS:
                mine = polarity._matching(records, optimizer=optimizer, update=update, sign=sign)
                assert sum(r["tokens"] for r in mine) == tokens[sign]
                assert all(r["boosted"] + r["suppressed"] <= r["tokens"] for r in mine)
                against = "suppressed" if sign == "positive" else "boosted"
                assert all(r["flipped"] == r[against] for r in mine)
    assert {r["category"] for r in records} <= set(CATEGORIES)


@pytest.mark.slow
def test_every_chart_can_be_made(measured) -> None:
    _, records = measured
    assert polarity.judge(records).numbers
    figures = polarity.draw(records)
    assert len(figures) == 4
    assert all(vega_specification(figure)["layer"] for figure in figures)
