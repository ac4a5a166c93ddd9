"""The value study: verdicts on made-up tokens, fair draws, and one small real run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from lab.studies.token_values import lab, tokens

from counterpoise.lab.studies.fixed_batch import Candidate
from counterpoise.lab.studies.value import measure
from counterpoise.lab.studies.value.judge import ENTROPY_SHARES, peak_share
from counterpoise.report.charts.vega import vega_specification
from counterpoise.statistics.finding import Record
from counterpoise.types import Row


def made_up(positive: float, negative: float, shuffled: float = 0.0) -> list[Record]:
    """Gaps by sign in the cells; over all tokens a gap of 0.2 among the top 40 % and none below."""
    cells = [
        r
        for sign, size in (("positive", positive), ("negative", negative))
        for r in tokens(size, panel="cells", mixed=0.0)
        if r["sign"] == sign
    ]
    strong = [{**r, "top": 0.4 * (n % 10 + 1) / 10} for n, r in enumerate(tokens(0.2))]
    weak = [{**r, "top": 0.4 + 0.6 * (n % 10 + 1) / 10} for n, r in enumerate(tokens(0.0, seed=1))]
    everything = [
        {**r, "panel": "all", "shuffled": r["delta"] if r["position"] % 4 else -r["delta"]}
        for r in (*strong, *weak)
    ]
    counts = [{"panel": "tokens", "prompt": f"1:{p}", "tokens": 100, "open": 12} for p in range(30)]
    return [*cells, *everything, *counts]


@pytest.mark.parametrize(
    ("positive", "negative", "verdict"),
    [
        (0.1, 0.1, "replicated"),
        (0.1, 0.0, "inconclusive"),
        (0.1, -0.1, "not replicated"),
    ],
)
def test_the_verdict_needs_both_signs(positive: float, negative: float, verdict: str) -> None:
    found = measure.judge(made_up(positive, negative))
    assert found.verdict == verdict
    numbers = {n.name: n for n in found.numbers}
    assert numbers["gap, positive rollouts, forced"].value == pytest.approx(positive, abs=0.01)
    assert numbers["gap, negative rollouts, Q - V, undivided"].value == pytest.approx(
        negative / 2, abs=0.01
    )
    assert numbers["tokens with p <= 0.95"].value == pytest.approx(0.12)
    assert numbers["share of tokens by entropy where the gap peaks"].paper == 0.4


def test_the_peak_is_where_strong_tokens_end() -> None:
    everything = [r for r in made_up(0.1, 0.1) if r["panel"] == "all"]
    falling = [{**r, "value": r["value"] * (r["top"] <= 0.2)} for r in everything]
    assert peak_share(falling, "value")[0] <= 0.2
    rising = [{**r, "value": (r["delta"] > 0) * r["top"]} for r in everything]
    assert peak_share(rising, "value")[0] == ENTROPY_SHARES[-1]


def test_cells_are_equal_and_the_first_of_the_pool() -> None:
    rows = [Row("a", 1.0, 99), Row("a", -1.0, 99)]
    rng = np.random.default_rng(0)
    pool = [Candidate(int(rng.integers(2)), n, -1.0, 0.5) for n in range(200)]
    delta = rng.choice([0.1, -0.1, 0.0], size=200, p=[0.5, 0.3, 0.2]).tolist()
    for size, expected in ((10, 10), (1000, None)):
        chosen = measure.draw_equal_cells(rows, pool, delta, size)
        cells = Counter((pool[n].row, delta[n]) for n in chosen)
        whole = Counter((c.row, d) for c, d in zip(pool, delta, strict=True) if d)
        assert set(cells.values()) == {expected or min(whole.values())}
    first = [n for n in range(200) if pool[n].row == 0 and delta[n] > 0][:10]
    assert set(first) <= set(measure.draw_equal_cells(rows, pool, delta, 10))


def test_shuffling_keeps_the_advantages_of_each_group() -> None:
    rows = [Row(g, a, 5, index=i) for g in "ab" for i, a in enumerate((1.5, -0.5, -0.5, -0.5))]
    mixed_up = [measure.shuffle_row_advantages(rows, seed) for seed in range(8)]
    for found in mixed_up:
        assert [(r.group, r.index) for r in found] == [(r.group, r.index) for r in rows]
        for group in "ab":
            assert sorted(r.advantage for r in found if r.group == group) == [-0.5] * 3 + [1.5]
    assert len({tuple(r.advantage for r in found) for found in mixed_up}) > 1
    assert [r.advantage for r in measure.shuffle_row_advantages(rows, 3)] == [
        r.advantage for r in measure.shuffle_row_advantages(rows, 3)
    ]


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    small = lab(tmp_path, cell=6)
    records = list(measure.measure(small))
    cells = [r for r in records if r["panel"] == "cells"]
    count = Counter((r["sign"], r["delta"] > 0) for r in cells)
    assert len(count) == 4
    assert len(set(count.values())) == 1
    everything = [r for r in records if r["panel"] == "all"]
    assert all(0 < r["top"] <= 1 and -1 <= r["value"] <= 1 for r in everything)
    assert any(r["p"] > 0.95 for r in everything)
    finding = measure.judge(records)
    assert finding.because
    for figure in measure.draw(records):
        assert vega_specification(figure)["layer"]
