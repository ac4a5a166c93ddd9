"""The variance study: verdicts on simulated scores of known rho, and one real run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from lab.studies.token_values import random_lab

from counterpoise.credit import advantages
from counterpoise.lab.studies.variance import measure
from counterpoise.lab.studies.variance.judge import COMPOSERS, DIRECTIONS, CutStatistics
from counterpoise.statistics.finding import Record, Verdict
from counterpoise.types import Row

P, G = 200, 8


@cache
def simulated(rho: float, heavier_by_sign: float = 1.0) -> list[Record]:
    rng = np.random.default_rng(0)
    A = np.array(
        [rng.permuted(advantages.grpo(1.0 * (np.arange(G) < k))) for k in rng.integers(1, G, P)]
    )
    X = np.sqrt(rho) * rng.normal(size=(P, 1)) + np.sqrt(1 - rho) * rng.normal(size=(P, G))
    rows = [Row(f"q{p}", float(A[p, i]), 5 + i, index=i) for p in range(P) for i in range(G)]
    scores = dict.fromkeys(DIRECTIONS, X)
    records = measure._plan_records(rows) + measure._filter_records("shared", X, A)
    for direction in DIRECTIONS[1:]:
        records += measure._filter_records(direction, X, A)
    for cut, parts in measure._cuts(rows).items():
        records += measure._cut_records(cut, parts, scores, A, draws=4)
    for record in records:
        if record.get("cut") == "by sign":
            record["measured"] *= heavier_by_sign
    return records


def test_a_shared_direction_is_quieter_in_whole_groups() -> None:
    found = measure.judge(simulated(rho=0.7))
    assert found.verdict == "replicated"
    numbers = {n.name: n for n in found.numbers}
    assert numbers["rho, shared direction"].value == pytest.approx(0.7, abs=0.07)
    whole = numbers["noise over independent rollouts, whole"]
    assert whole.low is not None
    assert whole.high is not None
    assert whole.low < 0.3 < whole.high
    assert numbers["C of eq. 14, grouped"].value == pytest.approx(-1)
    assert len(measure.draw(simulated(rho=0.7))) == 3


def test_a_direction_that_is_not_shared_cannot_test_it() -> None:
    found = measure.judge(simulated(rho=0.0))
    assert found.verdict == "untestable here"
    assert "needs rho = 0.08" in found.because


def test_a_shared_direction_without_less_noise_refutes_it() -> None:
    assert measure.judge(simulated(rho=0.7, heavier_by_sign=0.1)).verdict == "not replicated"


def test_the_rho_that_the_claim_needs() -> None:
    """At that rho the closed form gives whole groups, C = -1, 0.8 of the noise by sign."""
    for cross_term in (0.5, 1.13):
        rho = measure.needed_rho(cross_term)
        assert (1 - rho) / (1 + cross_term * rho) == pytest.approx(0.8)
    ratio, shared = (1.0, 0.95, 1.05), (0.02, -0.01, 0.11)
    verdicts = [
        measure.verdict_from_noise(ratio, shared, needed, closed_form_holds=True)
        for needed in (0.10, 0.12)
    ]
    assert verdicts == ["not replicated", "untestable here"]


def test_without_the_closed_form_nothing_is_concluded() -> None:
    """The cut is noisier than the theory can say: quieter whole groups alone do not replicate."""
    assert measure.judge(simulated(rho=0.7, heavier_by_sign=2.0)).verdict == "inconclusive"


def test_groups_are_those_of_the_rows() -> None:
    """A group that lacks a rollout without signal is left out."""
    rows = [Row(g, a, 5, index=i) for g in "ab" for i, a in enumerate((1.0, -0.5, -0.5))]
    rows += [Row("c", 1.0, 5, index=0), Row("c", -1.0, 5, index=2)]
    kept, size = measure.whole_groups(rows)
    assert ([row.name for row in kept], size) == ([row.name for row in rows[:6]], 3)


def test_composers_keep_to_the_closed_form() -> None:
    records = simulated(rho=0.5)
    for rule in COMPOSERS:
        one = CutStatistics(records, "shared", rule)
        _, low, high = one.interval(one.over_closed_form)
        assert low < 1.03
        assert high > 0.97


@pytest.mark.slow
def test_on_a_small_model(tmp_path: Path) -> None:
    records = measure.measure(random_lab(tmp_path, direction_prompts=2, draws=2))
    one = CutStatistics(records, "success", "whole")
    np.testing.assert_allclose(one.squares, G - 1, rtol=1e-5)
    np.testing.assert_allclose(one.sums, 0, atol=1e-9)
    assert measure.judge(records).verdict in get_args(Verdict)
    assert measure.draw(records)
