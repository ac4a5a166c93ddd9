"""maj@k: the chance that the most frequent answer among k of the n samples is right.

Right samples vote together, wrong ones by the text of their \\boxed answer; a sample without a box
has no vote. Tied answers share the point. The average over all choices of k of the n samples is
exact: with r right samples, wrong answers of counts w_1, w_2, ... and b samples without a box,

    maj@k = sum_j B(r, j) sum_t 1/(1 + t) W(j, t) / B(n, k)
    B(m, v) = C(m, v) p^v (1 - p)^(m-v), p = k/n
    W(j, t) = probability that k - j samples besides the right ones are taken, and that t wrong
              answers have j votes and none has more
            = coefficient of x^(k-j) y^t in
              (sum_v B(b, v) x^v) prod_i sum_{v<=j} B(w_i, v) x^v y^[v=j]

Here each sample is taken with probability p, independently. Given that k of them are taken, which
is the division by B(n, k), all choices of k are equally likely. Counting the choices themselves
would overflow from about a thousand samples on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]
NEGLIGIBLE = 1e-17  # terms of the sum over j below this share of B(n, k) are left out
DIGITS = 12  # the result is rounded to this many: the errors of its terms are smaller


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
    probabilities = {
        count: binomial(count, k / n) for count in {n, num_right, silent, *wrong.values()}
    }
    wrong_probabilities = [probabilities[count] for count in wrong.values()]
    total = 0.0
    # j: votes for the right answer among the k samples; it is at least k - (n - r).
    for j in range(max(1, k - n + num_right), min(num_right, k) + 1):
        share = probabilities[num_right][j] / probabilities[n][k]
        if share > NEGLIGIBLE:
            total += share * _shared_point(wrong_probabilities, probabilities[silent], j, k - j)
    return round(float(total), DIGITS)


def binomial(size: int, share: float) -> Probabilities:
    """B(size, v) for v = 0 .. size.

    Example:
        >>> binomial(2, 0.5).tolist()
        [0.25, 0.5, 0.25]
    """
    probabilities = np.zeros(size + 1)
    if share == 1:
        probabilities[size] = 1
        return probabilities
    # Outward from the largest one, so that nothing overflows; the smallest may become 0.
    v = np.arange(size)
    ratios = (size - v) / (v + 1) * (share / (1 - share))  # B(size, v + 1) / B(size, v)
    mode = min(size, int((size + 1) * share))
    probabilities[mode] = 1
    probabilities[mode + 1 :] = np.cumprod(ratios[mode:])
    probabilities[:mode] = np.cumprod(1 / ratios[:mode][::-1])[::-1]
    return probabilities / probabilities.sum()


def _shared_point(
    wrong: Sequence[Probabilities], silent: Probabilities, j: int, others: int
) -> float:
    """sum_t W(j, t) / (1 + t), where `others` samples are taken besides the j right ones."""
    # At most so many wrong answers can have j votes.
    max_ties = min(others // j, sum(len(probabilities) > j for probabilities in wrong))
    coefficients = np.zeros((max_ties + 1, others + 1))  # [t, x]
    coefficients[0, : len(silent)] = silent[: others + 1]
    for probabilities in wrong:
        # Multiply the polynomial by the factor of one wrong answer.
        below = probabilities[: min(j, others + 1)]
        product = np.array([np.convolve(row, below)[: others + 1] for row in coefficients])
        if max_ties and len(probabilities) > j:
            product[1:, j:] += probabilities[j] * coefficients[:-1, : others + 1 - j]
        coefficients = product
    return float((coefficients[:, others] / np.arange(1, max_ties + 2)).sum())
