"""Distances between clouds: closed forms, and transport against every assignment there is."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from counterpoise.credit import clouds


def setting(n: int, m: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randn(3, n, 2, generator=rng), torch.randn(3, m, 2, generator=rng)
    a, b = torch.rand(3, n, generator=rng) + 0.1, torch.rand(3, m, generator=rng) + 0.1
    return torch.cdist(x, y), a / a.sum(1, keepdim=True), b / b.sum(1, keepdim=True)


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
    found = clouds.transport(C, a, b, eps, iterations)
    for i in range(3):
        expected = sinkhorn(*(x[i].double().numpy() for x in (C, a, b)), eps, iterations)
        assert found[i].item() == pytest.approx(expected, rel=1e-4)


def test_with_little_blur_it_is_the_best_assignment() -> None:
    C, *_ = setting(5, 5, seed=1)
    even = torch.full((3, 5), 0.2)
    found = clouds.transport(C, even, even, 0.01, 500)
    for i in range(3):
        best = min(sum(C[i, x, y].item() for x, y in enumerate(p)) for p in permutations(range(5)))
        assert found[i].item() == pytest.approx(best / 5, rel=2e-3)
        for side in clouds.sides(C[i], 5, 5):  # the bound that spares plans
            assert side.item() <= found[i].item() + 1e-4


def test_one_point_is_as_far_as_it_is() -> None:
    C, one = torch.tensor([[[3.0]]]), torch.ones(1, 1)
    assert clouds.transport(C, one, one, 0.05, 3).item() == pytest.approx(3)
    assert [side.item() for side in clouds.sides(C[0], 1, 1)] == [3, 3]
    assert clouds.means(C[0], 100, 25).item() == pytest.approx(3)


def test_starts() -> None:
    assert list(clouds.starts(100, 100, 25)) == [0]
    assert list(clouds.starts(101, 100, 25)) == [0, 25]  # the second ends with the sequence
    assert list(clouds.starts(200, 100, 25)) == [0, 25, 50, 75, 100]
    assert list(clouds.starts(1, 100, 25)) == [0]
    for length in range(1, 60):
        covered = {t for s in clouds.starts(length, 7, 3) for t in range(s, min(s + 7, length))}
        assert covered == set(range(length))


@pytest.mark.parametrize(("width", "stride"), [(3, 2), (4, 4), (1, 1), (100, 25)])
@pytest.mark.parametrize(("T", "U"), [(9, 7), (1, 5), (8, 1)])
def test_every_pair_of_spans_by_loops(T: int, U: int, width: int, stride: int) -> None:
    C = torch.rand(T, U, generator=torch.Generator().manual_seed(0))
    from_x, from_y = clouds.sides(C, width, stride)
    means = clouds.means(C, width, stride)
    for k, s in enumerate(clouds.starts(T, width, stride)):
        for m, t in enumerate(clouds.starts(U, width, stride)):
            block = C[s : s + width, t : t + width].double()
            assert from_x[k, m].item() == pytest.approx(block.amin(1).mean().item())
            assert from_y[k, m].item() == pytest.approx(block.amin(0).mean().item())
            assert means[k, m].item() == pytest.approx(block.mean().item())
    assert from_x.shape == from_y.shape == means.shape == (k + 1, m + 1)


def test_padding_has_no_mass_and_no_say() -> None:
    C, a, b = setting(4, 3, seed=3)
    padded = torch.zeros(3, 6, 5)
    padded[:, :4, :3] = C
    wide_a, wide_b = torch.zeros(3, 6), torch.zeros(3, 5)
    wide_a[:, :4], wide_b[:, :3] = a, b
    torch.testing.assert_close(
        clouds.transport(padded, wide_a, wide_b, 0.2, 20), clouds.transport(C, a, b, 0.2, 20)
    )


def test_a_cloud_far_away_and_hardly_any_blur_stay_finite() -> None:
    C, a, b = setting(4, 4)
    assert torch.isfinite(clouds.transport(1e4 * C + 1e6, a, b, 1e-3, 10)).all()


def test_logarithms_say_the_same() -> None:
    C, a, b = setting(6, 5, seed=4)
    b = torch.cat((b, torch.zeros(3, 2)), dim=1)
    C = torch.cat((C, torch.zeros(3, 6, 2)), dim=2)
    for eps in (0.05, 0.3):
        torch.testing.assert_close(
            clouds._in_logarithms(C, a, b, eps, 30), clouds.transport(C, a, b, eps, 30),
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
