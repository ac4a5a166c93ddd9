"""maj@k: the chance that the most frequent answer among k of the n samples is right.

Right samples vote together, wrong ones by the text of their box; no box, no vote. Tied answers
share the point. Averaged over which k of the n are taken, exactly: with r right samples and wrong
answers of counts w_1, w_2, ... and b samples without a box,

    maj@k = sum_j C(r, j) sum_t 1/(1 + t) N(j, t) / C(n, k)
    N(j, t) = ways to take the other k - j so that t wrong answers have j votes and none has more
            = coefficient of x^(k-j) y^t in (1 + x)^b prod_i sum_{v<=j} C(w_i, v) x^v y^[v = j]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

Ways = NDArray[np.object_]  # [ties, x]: whole numbers of any size


def maj_at_k(votes: Sequence[str | None], right: Sequence[bool], k: int) -> float:
    """Of one problem: what each sample answered (None: nothing), and whether that was right.

    Example:
        >>> maj_at_k(["4", "4", "5"], [True, True, False], k=3)
        1.0
        >>> maj_at_k(["4", "5", None], [True, False, False], k=3)
        0.5
    """
    n = len(votes)
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} of {n} samples")
    answered = list(zip(votes, right, strict=True))
    r = sum(ok for _, ok in answered)
    wrong = Counter(" ".join(v.split()) for v, ok in answered if not ok and v is not None)
    silent = n - r - wrong.total()
    won = sum(
        comb(r, j) * _shared(_ways(list(wrong.values()), silent, j, k - j))
        for j in range(max(1, k - n + r), min(r, k) + 1)
    )
    return float(won / comb(n, k))


def _ways(counts: Sequence[int], silent: int, j: int, others: int) -> Ways:
    """[t] ways to take `others` samples with t wrong answers level with j votes, none above."""
    ways: Ways = np.zeros((others // j + 1, others + 1), dtype=object)
    ways[0] = [comb(silent, x) for x in range(others + 1)]
    for count in counts:
        added: Ways = np.zeros_like(ways)
        for v in range(min(count, j, others) + 1):
            level = int(v == j)
            source = ways[: len(ways) - level, : others + 1 - v]
            added[level:, v:] += comb(count, v) * source
        ways = added
    return ways[:, others]


def _shared(ways_t: Ways) -> float:
    return sum(int(ways) / (1 + t) for t, ways in enumerate(ways_t))
