"""pass@k = 1 - C(n - c, k) / C(n, k): the probability that k of n samples contain a right one.

It is the average over all choices of k among the n samples, so it is unbiased for k fresh samples;
1 - (1 - c/n)^k is not. pass@1 is avg@n, the share c/n. arXiv:2107.03374
"""

from __future__ import annotations

from math import comb


def pass_at_k(right: int, samples: int, k: int) -> float:
    """pass@k of one problem with `right` of its `samples` solved.

    Example:
        >>> pass_at_k(1, 4, 1), pass_at_k(1, 4, 2), pass_at_k(0, 4, 4), pass_at_k(3, 4, 2)
        (0.25, 0.5, 0.0, 1.0)
    """
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(
            f"pass@{k} of {right} right among {samples} samples: `right` must lie in 0 to samples "
            "and k in 1 to samples"
        )
    return 1.0 - comb(samples - right, k) / comb(samples, k)
