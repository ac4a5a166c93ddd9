"""The masking study: verdicts on simulated effects, and one small real run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lab.studies.token_values import random_lab

from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.masking import measure
from counterpoise.lab.studies.masking.judge import COSINE_EDGES, ETA, SMALL_ETA, matching
from counterpoise.report.charts.vega import vega_specification
from counterpoise.statistics.finding import Record

PAPER = {"random": 0.5, "same": 0.66, "low": 0.44, "both": 0.75}


def simulated(rates: dict[str, float], prompts: int = 60) -> list[Record]:
    """Mixed sets boost at the given rates; sets of one sign follow their sign."""
    rng = np.random.default_rng(0)
    records: list[Record] = []

    def add(panel: str, condition: str, source: str, chance: float, how: str = "update") -> None:
        for c in range(5 * prompts):
            boosts = rng.random() < chance
            shared = {
                "panel": panel, "condition": condition, "source": source, "candidate": c,
                "sign": "positive" if c % 2 else "negative", "prompt": f"p{c % prompts}",
                "tokens": 4, "positive_tokens": 2, "effect": 0.01 if boosts else -0.01,
            }  # fmt: skip
            for layer in ("head", "full"):
                records.append({**shared, "layer": layer, "how": how, "rate": ETA})
                if panel == "table" and how == "update":
                    records.append({**shared, "layer": layer, "how": "first order", "rate": ETA})
                    records.append({**shared, "layer": layer, "how": how, "rate": SMALL_ETA})

    for source, sure in (("mixed", None), ("positive", 1.0), ("negative", 0.0)):
        for condition, chance in rates.items():
            add("table", condition, source, chance if sure is None else sure)
        for how in ("update", "first order"):
            for low in COSINE_EDGES[:-1]:
                add("strength", f"{low}", source, 0.5 if sure is None else sure, how)
            for n in measure.TOP_COUNTS:
                add("top", f"{n}", source, 0.5 if sure is None else sure, how)
    for how in ("update", "first order"):
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            add("mixture", f"{share}", "mixed", share, how)
    return records


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        (PAPER, "replicated"),
        ({**PAPER, "both": 0.46}, "not replicated"),
        ({**PAPER, "both": 0.2}, "not replicated"),
        ({**PAPER, "same": 0.3}, "inconclusive"),  # both is above random, but the order is not
    ],
)
def test_the_verdict_follows_the_mixed_column(rates: dict[str, float], verdict: str) -> None:
    found = measure.judge(simulated(rates))
    assert found.verdict == verdict
    numbers = {n.name: n for n in found.numbers}
    assert numbers["Boost Rate, both, full"].value == pytest.approx(rates["both"], abs=0.06)
    assert numbers["Boost Rate, both, full"].paper == 0.75
    assert numbers["both, head: positive tokens on a negative candidate"].value == 1.0
    assert numbers["both, head: negative tokens on a positive candidate"].value == 0.0
    share = numbers["share of positive tokens at which the paper's rate is met, full"].value
    assert share == pytest.approx(0.75, abs=0.06)  # simulated: the rate is the share
    assert numbers["first order has the sign of the update, full, lr 0.001"].value == 1.0


def test_a_rate_that_no_mixture_reaches_is_not_met() -> None:
    """With all parameters even positive tokens alone boost too seldom."""
    records = [
        {**r, "effect": -0.01} if r["panel"] == "mixture" and r["layer"] == "full" else r
        for r in simulated(PAPER)
    ]
    found = measure.judge(records)
    met = [n.name for n in found.numbers if "rate is met" in n.name]
    assert met == ["share of positive tokens at which the paper's rate is met, head"]
    assert "would need 7" in found.notes[0]
    assert found.notes[0].endswith(" % (output layer).")
    none = [{**r, "effect": -0.01} if r["panel"] == "mixture" else r for r in records]
    assert measure.judge(none).notes[0].endswith("the printed 75 % is met at no share.")


def test_few_candidates_conclude_nothing() -> None:
    assert measure.judge(simulated({**PAPER, "both": 0.56}, prompts=8)).verdict == "inconclusive"


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Lab, list[Record]]:
    small = random_lab(tmp_path_factory.mktemp("masking"), candidates=12, real=2, rows=1)
    before = [p.detach().clone() for p in small.policy.model.parameters()]
    records = list(measure.measure(small))
    for p, was in zip(small.policy.model.parameters(), before, strict=True):
        assert torch.equal(p, was)
    return small, records


@pytest.mark.slow
def test_sets_are_what_they_are_called(measured) -> None:
    _, records = measured
    for r in records:
        assert all(isinstance(value, (str, int, float)) for value in r.values())
        assert 1 <= r["tokens"] <= max(measure.SET_SIZE, *measure.TOP_COUNTS)
        if r["source"] != "mixed":
            assert r["positive_tokens"] == (r["tokens"] if r["source"] == "positive" else 0)
    signs = {r["candidate"]: r["sign"] for r in records}
    assert sorted(signs.values())[:2] != sorted(signs.values())[-2:]  # both kinds of candidates
    for share in {r["condition"] for r in records if r["panel"] == "mixture"}:
        for r in matching(records, panel="mixture", condition=share):
            assert r["positive_tokens"] == float(share) * r["tokens"]


@pytest.mark.slow
def test_layers_cover_the_candidates_they_should(measured) -> None:
    small, records = measured

    def count(**wanted: object) -> int:
        return len({r["candidate"] for r in matching(records, **wanted)})

    assert count(layer="head", how="update") == 12
    assert count(layer="full", how="update", rate=ETA) == small.sizes["real"]
    assert count(layer="full", how="update", rate=SMALL_ETA) == small.sizes["rows"]
    assert count(layer="full", how="first order") == small.sizes["rows"]


@pytest.mark.slow
def test_prediction_and_real_update_agree_in_sign_at_a_small_rate(measured) -> None:
    _, records = measured
    finding = measure.judge(records)
    agreement = {n.name: n.value for n in finding.numbers if n.name.startswith("first order")}
    assert agreement["first order has the sign of the update, full, lr 0.001"] >= 0.95
    assert agreement["first order has the sign of the update, head, lr 0.1"] >= 0.95


@pytest.mark.slow
def test_every_chart_can_be_made(measured) -> None:
    _, records = measured
    for made in (records, simulated(PAPER, prompts=3)):
        figures = measure.draw(made)
        assert len(figures) == 8
        assert all(vega_specification(figure)["layer"] for figure in figures)
