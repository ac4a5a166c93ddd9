"""Distances between clouds: closed forms, and transport against every assignment there is."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from counterpoise.credit import point_distances


def setting(n: int, m: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randn(3, n, 2, generator=rng), torch.randn(3, m, 2, generator=rng)
    a, b = torch.rand(3, n, generator=rng) + 0.1, torch.rand(3, m, generator=rng) + 0.1
    return torch.cdist(x, y), a / a.sum(1, keepdim=True), b / b.sum(1, keepdim=True)


def shares(*lengths: int, width: int, stride: int) -> torch.Tensor:
    return point_distances.span_token_shares(torch.tensor(lengths), max(lengths), width, stride)


def sinkhorn(C: np.ndarray, a: np.ndarray, b: np.ndarray, eps: float, iterations: int) -> float:
    """Rows and columns of exp(-C / eps) scaled in turn, entry by entry."""
    K = np.exp(-C / eps)
    u, v = np.ones(len(a)), b.copy()
    for _ in range(iterations):
        for i in range(len(a)):
            u[i] = a[i] / sum(K[i, j] * v[j] for j in range(len(b)))
        for j in range(len(b)):
            v[j] = b[j] / sum(K[i, j] * u[i] for i in range(len(a)))
    return sum(u[i] * K[i, j] * v[j] * C[i, j] for i in range(len(a)) for j in range(len(b)))


@pytest.mark.parametrize("eps", [0.1, 1.0])
@pytest.mark.parametrize("iterations", [1, 5, 60])
def test_sinkhorn(eps: float, iterations: int) -> None:
    C, a, b = setting(5, 4)
    found = point_distances.transport_cost(C, a, b, eps, iterations)
    for i in range(3):
        expected = sinkhorn(*(x[i].double().numpy() for x in (C, a, b)), eps, iterations)
        assert found[i].item() == pytest.approx(expected, rel=1e-4)


def test_with_little_blur_it_is_the_best_assignment() -> None:
    C, *_ = setting(5, 5, seed=1)
    even = torch.full((3, 5), 0.2)
    found = point_distances.transport_cost(C, even, even, 0.01, 500)
    for i in range(3):
        best = min(sum(C[i, x, y].item() for x, y in enumerate(p)) for p in permutations(range(5)))
        assert found[i].item() == pytest.approx(best / 5, rel=2e-3)
    whole = shares(5, 5, 5, width=5, stride=5)
    for side in point_distances.chamfer_sides(C, whole, whole, 5, 5):  # the bound that spares plans
        assert (side.flatten() <= found + 1e-4).all()


def test_one_point_is_as_far_as_it_is() -> None:
    C, one = torch.tensor([[[3.0]]]), torch.ones(1, 1)
    assert point_distances.transport_cost(C, one, one, 0.05, 3).item() == pytest.approx(3)
    x = shares(1, width=100, stride=25)
    assert [side.item() for side in point_distances.chamfer_sides(C, x, x, 100, 25)] == [3, 3]
    assert point_distances.mean_distances(C, x, x).item() == pytest.approx(3)


def test_starts() -> None:
    assert list(point_distances.span_starts(100, 100, 25)) == [0]
    assert list(point_distances.span_starts(101, 100, 25)) == [
        0,
        25,
    ]  # the second ends with the sequence
    assert list(point_distances.span_starts(200, 100, 25)) == [0, 25, 50, 75, 100]
    assert list(point_distances.span_starts(1, 100, 25)) == [0]
    for length in range(1, 60):
        covered = {
            t
            for s in point_distances.span_starts(length, 7, 3)
            for t in range(s, min(s + 7, length))
        }
        assert covered == set(range(length))


@pytest.mark.parametrize(("width", "stride"), [(3, 2), (4, 4), (1, 1), (100, 25)])
def test_every_pair_of_spans_by_loops(width: int, stride: int) -> None:
    """Sequences of several lengths in one call; the shorter ones go on with their last point."""
    lengths = [(9, 7), (1, 5), (8, 1), (4, 6), (1, 1)]
    points = torch.rand(len(lengths), 2, 9, 3, generator=torch.Generator().manual_seed(0))
    for n, pair in enumerate(lengths):
        for side, length in enumerate(pair):
            points[n, side, length:] = points[n, side, length - 1]
    C = torch.cdist(points[:, 0], points[:, 1, :7])
    x, y = (shares(*side, width=width, stride=stride) for side in zip(*lengths, strict=True))
    from_x, from_y = point_distances.chamfer_sides(C, x, y, width, stride)
    means = point_distances.mean_distances(C, x, y)
    for n, (T, U) in enumerate(lengths):
        for k, s in enumerate(point_distances.span_starts(T, width, stride)):
            for m, t in enumerate(point_distances.span_starts(U, width, stride)):
                block = C[n, :T, :U][s : s + width, t : t + width].double()
                assert from_x[n, k, m].item() == pytest.approx(block.amin(1).mean().item())
                assert from_y[n, k, m].item() == pytest.approx(block.amin(0).mean().item())
                assert means[n, k, m].item() == pytest.approx(block.mean().item())
    spans = [len(point_distances.span_starts(length, width, stride)) for length in (9, 7)]
    assert from_x.shape == from_y.shape == means.shape == (len(lengths), *spans)


def test_padding_has_no_mass_and_no_say() -> None:
    C, a, b = setting(4, 3, seed=3)
    padded = torch.zeros(3, 6, 5)
    padded[:, :4, :3] = C
    wide_a, wide_b = torch.zeros(3, 6), torch.zeros(3, 5)
    wide_a[:, :4], wide_b[:, :3] = a, b
    torch.testing.assert_close(
        point_distances.transport_cost(padded, wide_a, wide_b, 0.2, 20),
        point_distances.transport_cost(C, a, b, 0.2, 20),
    )


def test_a_cloud_far_away_and_hardly_any_blur_stay_finite() -> None:
    C, a, b = setting(4, 4)
    assert torch.isfinite(point_distances.transport_cost(1e4 * C + 1e6, a, b, 1e-3, 10)).all()


def test_logarithms_say_the_same() -> None:
    C, a, b = setting(6, 5, seed=4)
    b = torch.cat((b, torch.zeros(3, 2)), dim=1)
    C = torch.cat((C, torch.zeros(3, 6, 2)), dim=2)
    for eps in (0.05, 0.3):
        torch.testing.assert_close(
            point_distances._log_domain_transport_cost(C, a, b, eps, 30),
            point_distances.transport_cost(C, a, b, eps, 30),
            rtol=1e-4,
            atol=1e-5,
        )
