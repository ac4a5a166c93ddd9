"""The coupling study: its sums against all pairs written out, and its verdicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lab.studies.token_values import random_lab

from counterpoise.lab.studies.coupling import measure
from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.pairs import kernel_rows
from counterpoise.report.charts.vega import vega_specification
from counterpoise.statistics.finding import Record

Measured = tuple[Snapshot, torch.Tensor, list[Record]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Measured:
    """Every token is watched, so that sums are over all pairs."""
    small = random_lab(tmp_path_factory.mktemp("coupling"), pairs=500, watched=10**6)
    records = list(measure.measure(small))
    seen = take_snapshot(small.policy, small.rows(6))
    return seen, small.policy.decoder.unembedding.detach(), records


def of(records: list[Record], panel: str, **wanted: object) -> list[Record]:
    return [
        r
        for r in records
        if r["panel"] == panel and all(r[name] == value for name, value in wanted.items())
    ]


def test_cells_sum_to_all_pairs(measured: Measured) -> None:
    seen, W, records = measured
    N = len(seen)
    push = (kernel_rows(seen.hidden, W, seen.tokens, torch.arange(N)) * seen.advantages).abs()
    push.fill_diagonal_(0)
    cells = of(records, "cells")
    assert sum(r["pairs"] for r in cells) == N * (N - 1)
    assert sum(r["strength"] for r in cells) == pytest.approx(push.sum().item(), rel=1e-4)

    low = seen.logprobs.exp() <= 0.5
    equal = seen.tokens[:, None] == seen.tokens
    both = push[equal & low[:, None] & low].sum().item()
    mine = of(records, "cells", kind="equal", low=2)
    assert sum(r["strength"] for r in mine) == pytest.approx(both, rel=1e-4)

    pi = torch.softmax(seen.hidden @ W.T, dim=1)[:, seen.tokens]  # pi_j(o_k)
    rivals = push[~equal & (pi >= measure.RIVAL_PROBABILITY)].sum().item()
    found = sum(r["strength"] for r in of(records, "cells", kind="rival"))
    assert found == pytest.approx(rivals, rel=1e-3)

    by_prompt = of(records, "prompt_pairs")
    assert sum(r["pairs"] for r in by_prompt) == N * (N - 1)
    first, second = seen.groups.unique()[:2].tolist()
    between = push[seen.groups == first][:, seen.groups == second].sum().item()
    mine = of(records, "prompt_pairs", prompt=str(first), prompt_k=str(second))
    assert sum(r["strength"] for r in mine) == pytest.approx(between, rel=1e-3)

    order = seen.entropies.argsort()
    top = order[int(np.ceil(0.9 * N)) :]
    corner = push[top][:, top].sum().item()
    mine = of(records, "cells", entropy_j=9, entropy_k=9)
    assert sum(r["strength"] for r in mine) == pytest.approx(corner, rel=1e-3)


def test_parts_are_those_of_the_decomposition(measured: Measured) -> None:
    seen, W, records = measured
    found = decompose(seen.hidden, W, seen.tokens, seen.advantages, seen.groups)
    own = sum(r["strength"] for r in of(records, "parts", kind="own"))
    assert own == pytest.approx(found.self_push.abs().sum().item(), rel=1e-4)
    same = sum(values for part, values in found.parts.items() if part[0] == "same")
    equal = sum(r["strength"] for r in of(records, "parts", kind="equal"))
    assert equal == pytest.approx(same.abs().sum().item(), rel=1e-4)


def test_sampled_pairs_are_equal_or_different(measured: Measured) -> None:
    _, _, records = measured
    for kind in ("equal", "different"):
        mine = of(records, "pairs", kind=kind)
        assert len(mine) == 500
        assert all(-1.0001 <= r["cosine"] <= 1.0001 and abs(r["phi"]) <= 2 for r in mine)
        assert all(("printed" in r) == (kind == "equal") for r in mine)
    for r in of(records, "pairs", kind="equal"):
        assert r["phi"] >= r["printed"] - 1e-6  # what eq. 10 lacks is never negative


def test_the_verdict_needs_all_three_panels(measured: Measured) -> None:
    _, _, records = measured
    found = measure.judge(records)
    assert found.verdict in ("replicated", "inconclusive")

    def changed(panel: str, **values) -> list[Record]:
        """The records of one panel with some values replaced by functions of the record."""
        return [
            {**r, **{name: f(r) for name, f in values.items()}} if r["panel"] == panel else r
            for r in records
        ]

    clear = [
        {
            **r,
            "similarity": 2.0 if r["kind"] == "equal" else 1.0,
            "phi": float(r["kind"] == "equal"),
        }
        if r["panel"] == "pairs"
        else r
        for r in records
    ]
    high = [
        {**r, "strength": r["pairs"] * float(r["high"] == 2)} if r["panel"] == "prompt_pairs" else r
        for r in clear
    ]
    assert measure.judge(high).verdict == "replicated"
    negative = changed("pairs", similarity=lambda r: -1.0)
    assert measure.judge(negative).verdict == "not replicated"
    swapped = changed("pairs", phi=lambda r: float(r["kind"] == "different"))
    assert measure.judge(swapped).verdict == "not replicated"
    flat = changed("prompt_pairs", strength=lambda r: r["pairs"] * (3.0 - r["high"]))
    assert measure.judge(flat).verdict == "not replicated"


def test_every_chart_can_be_made(measured: Measured) -> None:
    _, _, records = measured
    figures = measure.draw(records)
    assert len(figures) == 5
    assert all(vega_specification(figure) for figure in figures)
