"""pass@k: its closed form against every subset, and against fresh samples."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from counterpoise.statistics.pass_at_k import pass_at_k


@pytest.mark.parametrize("samples", [1, 2, 5, 7])
def test_it_is_the_mean_over_all_subsets(samples: int) -> None:
    for right in range(samples + 1):
        drawn = [1] * right + [0] * (samples - right)
        for k in range(1, samples + 1):
            subsets = list(combinations(drawn, k))
            literal = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(right, samples, k) == pytest.approx(literal, abs=1e-12)


def test_it_is_unbiased() -> None:
    """Solved with chance p, the mean over draws is 1 - (1 - p)^k; the plug-in's is less."""
    rng = np.random.default_rng(0)
    p, n, k = 0.1, 16, 8
    rights = rng.binomial(n, p, size=200_000)
    table = [pass_at_k(c, n, k) for c in range(n + 1)]
    plug_in = [1 - (1 - c / n) ** k for c in range(n + 1)]
    truth = 1 - (1 - p) ** k
    assert np.take(table, rights).mean() == pytest.approx(truth, abs=0.003)
    assert np.take(plug_in, rights).mean() < truth - 0.02


def test_large_counts_stay_exact() -> None:
    assert pass_at_k(1, 1024, 512) == 0.5
    assert pass_at_k(3, 4, 2) == 1.0


@pytest.mark.parametrize(("right", "samples", "k"), [(5, 4, 1), (1, 4, 5), (1, 4, 0), (-1, 4, 1)])
def test_what_cannot_be_is_refused(right: int, samples: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(right, samples, k)
