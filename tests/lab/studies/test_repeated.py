"""The repeated-update study: verdicts on made-up tokens, and one small real run."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.studies.token_values import random_lab, tokens

from counterpoise.lab.studies import repeated
from counterpoise.lab.studies.fixed_batch import FixedBatch
from counterpoise.report.charts.vega import vega_specification


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ((0.10, 0.15, 0.2, 0.25), "replicated"),
        ((0.10, 0.50, 0.01, 0.20), "inconclusive"),  # ends higher, but does not rise
        ((0.10, 0.10, 0.10, 0.10), "inconclusive"),
        ((0.20, 0.15, 0.12, 0.10), "not replicated"),
    ],
)
def test_the_verdict_follows_the_last_step_and_the_rise(gaps, verdict) -> None:
    records = [r for step, gap in enumerate(gaps, 1) for r in tokens(gap, step=step)]
    found = repeated.judge(records)
    assert found.verdict == verdict
    numbers = {n.name: n.value for n in found.numbers}
    assert numbers["gap, step 4 minus step 1"] == pytest.approx(gaps[3] - gaps[0], abs=0.01)


def test_rank_correlation() -> None:
    assert repeated.rank_correlation([1.0, 2.0, 7.0]) == pytest.approx(1.0)
    assert repeated.rank_correlation([3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert repeated.rank_correlation([1.0, 3.0, 2.0, 4.0]) == pytest.approx(0.8)
    assert repeated.rank_correlation([1.0, 1.0, 2.0]) == pytest.approx(0.866, abs=1e-3)
    assert repeated.rank_correlation([1.0, 1.0]) != repeated.rank_correlation([1.0, 1.0])  # nan


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    small = random_lab(tmp_path, repeated=4, steps=3)
    records = list(repeated.measure(small))
    batch = FixedBatch(small)
    keys = [group.key for group in batch.groups[:4]]
    candidates = [c for c in batch.candidates() if batch.rows[c.row].group in keys]
    (once,) = batch.measure_displacements(candidates, lambda: small.update(batch.rows_of(keys)))
    assert {r["step"] for r in records} == {1, 2, 3}
    assert [r["delta"] for r in records if r["step"] == 1] == once
    assert {r["prompt"] for r in records} <= set(keys)
    assert repeated.judge(records).because
    for figure in repeated.draw(records):
        assert vega_specification(figure)["layer"]
