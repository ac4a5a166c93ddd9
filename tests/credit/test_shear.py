"""SHEAR: spans, their nearest counterpart of the other outcome, and the weight of every token."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from one_by_one import made, with_advantages

from counterpoise.credit import shear
from counterpoise.credit.point_distances import span_starts
from counterpoise.credit.shear import weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError

ROWS = with_advantages(
    tiny.rows(groups=3, size=4, seed=6, longest=17),
    [1, -1, -1, 1, 3, -1, -1, -1, 1, 1, 1, 1],
)


def seen(rows, hidden) -> SimpleNamespace:
    tensors = [torch.tensor(h, dtype=torch.float32) for h in hidden]
    view = CreditView(rows)
    return SimpleNamespace(
        rows=rows, groups=view.groups, group_numbers_R=view.group_numbers_R, hidden=tensors
    )


def transport(x: np.ndarray, y: np.ndarray, eps: float, iterations: int) -> float:
    C = np.array([[np.linalg.norm(p - q) for q in y] for p in x])
    K, v = np.exp(-C / eps), np.full(len(y), 1 / len(y))
    for _ in range(iterations):
        u = 1 / len(x) / (K @ v)
        v = 1 / len(y) / (u @ K)
    return float((u[:, None] * K * v * C).sum())


def chamfer(x: np.ndarray, y: np.ndarray) -> float:
    C = np.array([[np.linalg.norm(p - q) for q in y] for p in x])
    return (C.min(axis=1).mean() + C.min(axis=0).mean()) / 2


def energy(x: np.ndarray, y: np.ndarray) -> float:
    def mean(p, q):
        return np.mean([[np.linalg.norm(a - b) for b in q] for a in p])

    return max(0, 2 * mean(x, y) - mean(x, x) - mean(y, y)) ** 0.5


def slow(view, width: int, stride: int, distance) -> list[np.ndarray]:
    """Token by token, span by span, as the formula says."""
    found = []
    for i, row in enumerate(view.rows):
        group = [j for j, r in enumerate(view.rows) if r.group == row.group]
        norms = [np.linalg.norm(h) for j in group for h in view.hidden[j].double().numpy()]
        unit = sum(norms) / len(norms)

        def spans(j, unit=unit):
            h = view.hidden[j].double().numpy() / unit
            return [(s, h[s : s + width]) for s in span_starts(len(h), width, stride)]

        other = [p for j in group if view.rows[j].sign == -row.sign for _, p in spans(j)]
        w = np.zeros(row.num_tokens)
        for start, points in spans(i):
            d = min((distance(points, p) for p in other), default=1.0)
            for t in range(start, start + len(points)):
                w[t] = max(w[t], d)
        found.append(w)
    return found


@pytest.mark.parametrize(
    ("name", "distance"),
    [
        ("wasserstein", lambda x, y: transport(x, y, 0.1, 200)),
        ("chamfer", chamfer),
        ("mmd", energy),
    ],
)
@pytest.mark.parametrize(("width", "stride"), [(5, 2), (100, 25), (1, 1)])
def test_the_formula(name: str, distance, width: int, stride: int, monkeypatch) -> None:
    monkeypatch.setitem(shear.PAIR_MEMORY, "cpu", 100_000)  # a few pairs at a time
    view = CreditView(ROWS, PolicyReader(tiny.policy()))
    given = {"blur": 0.1, "iterations": 200} if name == "wasserstein" else {}
    found = weights(view, distance=name, width=width, stride=stride, **given)
    for w_T, expected_T in zip(found, slow(view, width, stride, distance), strict=True):
        assert w_T.dtype == np.float32
        np.testing.assert_allclose(w_T, expected_T, atol=2e-3)
    for w_T in found[8:]:  # nobody of the other outcome
        np.testing.assert_array_equal(w_T, 1)


@pytest.mark.parametrize("name", shear.DISTANCE_NAMES)
@pytest.mark.parametrize(("width", "stride"), [(16, 4), (100, 25)])
def test_pairs_at_once_or_one_by_one(name: str, width: int, stride: int, monkeypatch) -> None:
    """Rows of 1 to 60 tokens, on either side of where cdist changes its way, some groups alone."""
    rng, lengths = torch.Generator().manual_seed(0), [1, 60, 24, 3, 26, 1, 1, 41, 9, 1, 17, 2]
    rows = with_advantages(
        [made(f"g{i // 4}", i % 4, 1.0, [7] * length) for i, length in enumerate(lengths)],
        [1, -1, -1, 1, 1, 3, -1, 1, -1, -1, -1, -1],
    )
    view = seen(rows, [torch.randn(n, 6, generator=rng).tolist() for n in lengths])
    together = weights(view, distance=name, width=width, stride=stride)
    monkeypatch.setitem(shear.PAIR_MEMORY, "cpu", 1)
    apart = weights(view, distance=name, width=width, stride=stride)
    for row, one, other in zip(rows, together, apart, strict=True):
        assert len(one) == row.num_tokens
        np.testing.assert_allclose(one, other, rtol=1e-5)
    for w_T in together[8:]:
        np.testing.assert_array_equal(w_T, 1)


def test_many_groups_take_no_more_calls_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [], torch.cdist

    def counted(*given):
        calls.append(len(given[0]))
        return real(*given)

    monkeypatch.setattr(torch, "cdist", counted)
    rows = [made(f"g{i // 4}", i % 4, 1.0 - 2 * (i % 2), [7] * (1 + i % 9)) for i in range(80)]
    view = seen(rows, [np.full((row.num_tokens, 2), 1.0 + i) for i, row in enumerate(rows)])
    weights(view, distance="chamfer", width=3, stride=1)
    assert calls == [80]  # 20 groups of 2 x 2 pairs


@pytest.mark.parametrize("name", shear.DISTANCE_NAMES)
def test_what_both_have_counts_nothing_and_what_parts_them_counts(name: str) -> None:
    """Spans of one token: a shared state at distance 0, and states of norm 1 at 90 degrees."""
    rows = [made("g", 0, 1.0, [7, 8]), made("g", 1, -1.0, [7, 9])]
    view = seen(rows, [[[0.6, 0.8, 0], [0, 0, 1]], [[0.6, 0.8, 0], [-0.8, 0.6, 0]]])
    right, wrong = weights(view, distance=name, width=1, stride=1)
    apart = (2 * 2**0.5) ** 0.5 if name == "mmd" else 2**0.5
    np.testing.assert_allclose(right, [0, apart], atol=1e-4)
    np.testing.assert_allclose(wrong, [0, apart], atol=1e-4)


@pytest.mark.parametrize("advantages", [[1, 1], [-1, -1], [2]])
def test_without_the_other_outcome(advantages: list[float]) -> None:
    rows = [made("g", i, a, [7]) for i, a in enumerate(advantages)]
    found = weights(seen(rows, [[[1.0, 2.0]]] * len(rows)))
    assert [w_T.tolist() for w_T in found] == [[1.0]] * len(rows)
    assert weights(CreditView([])) == []


def test_bounds_spare_most_plans_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    view = CreditView(ROWS[:8], PolicyReader(tiny.policy()))
    planned = []
    real = shear.point_distances.transport_cost

    def counted(C, *rest):
        planned.append(len(C))
        return real(C, *rest)

    monkeypatch.setattr(shear.point_distances, "transport_cost", counted)
    quick = weights(view, width=3, stride=1)
    few, all_sides = sum(planned), shear.point_distances.chamfer_sides
    monkeypatch.setattr(
        shear.point_distances,
        "chamfer_sides",
        lambda *given: [0 * side for side in all_sides(*given)],
    )
    for one, other in zip(quick, weights(view, width=3, stride=1), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert few < (sum(planned) - few) / 3


@pytest.mark.parametrize(
    "settings",
    [{"distance": "cosine"}, {"stride": -1}, {"stride": 101}, {"blur": 0.0}, {"iterations": 0}],
)
def test_settings_that_make_no_sense(settings: dict) -> None:
    with pytest.raises(PoiseError, match="shear"):
        weights(CreditView(ROWS), **settings)


def test_short_responses_have_several_spans_by_default() -> None:
    rows = with_advantages(
        tiny.rows(groups=1, size=4, seed=6, shortest=30, longest=60), [1, -1, -1, 1]
    )
    view = CreditView(rows, PolicyReader(tiny.policy()))
    width = shear.automatic_width([row.num_tokens for row in rows])
    assert 7 <= width <= 15
    found = weights(view)
    for row, weights_T, fixed_T in zip(
        rows, found, weights(view, width=width, stride=width // 4), strict=True
    ):
        assert len(span_starts(row.num_tokens, width, width // 4)) > 1
        assert weights_T.tolist() == fixed_T.tolist()
        assert len(set(weights_T.tolist())) > 1
    for weights_T in weights(view, width=100, stride=25):
        assert len(set(weights_T.tolist())) == 1  # as published: one weight for the whole response
