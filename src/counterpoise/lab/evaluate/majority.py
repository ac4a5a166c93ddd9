"""maj@k: the chance that the most frequent answer among k of the n samples is right.

Right samples vote together, wrong ones by the text of their \\boxed answer; a sample without a box
has no vote. Tied answers share the point. The average over all choices of k of the n samples is
exact: with r right samples, wrong answers of counts w_1, w_2, ... and b samples without a box,

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
    """maj@k of one problem, from each sample's answer (None: no answer) and whether it is right.

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
    num_right = sum(is_right for _, is_right in answered)
    wrong = Counter(
        " ".join(vote.split()) for vote, is_right in answered if not is_right and vote is not None
    )
    silent = n - num_right - wrong.total()
    # j: votes for the right answer among the k samples; it is at least k - (n - r).
    winning_ways = sum(
        comb(num_right, j) * _shared(_ways(list(wrong.values()), silent, j, k - j))
        for j in range(max(1, k - n + num_right), min(num_right, k) + 1)
    )
    return float(winning_ways / comb(n, k))


def _ways(counts: Sequence[int], silent: int, j: int, others: int) -> Ways:
    """[t]: ways to choose `others` samples with t wrong answers at j votes and none above."""
    ways: Ways = np.zeros((others // j + 1, others + 1), dtype=object)
    ways[0] = [comb(silent, x) for x in range(others + 1)]
    for count in counts:
        # Multiply the polynomial by the factor of one wrong answer.
        added: Ways = np.zeros_like(ways)
        for votes_taken in range(min(count, j, others) + 1):
            level = int(votes_taken == j)
            source = ways[: len(ways) - level, : others + 1 - votes_taken]
            added[level:, votes_taken:] += comb(count, votes_taken) * source
        ways = added
    return ways[:, others]


def _shared(ways_t: Ways) -> float:
    return sum(int(ways) / (1 + t) for t, ways in enumerate(ways_t))
