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

Two identities make it fast. 1/(1 + t) is the integral of y^t from 0 to 1, so the sum over t is the
integral over y of the coefficient of x^(k-j), which few points y give. At each y, the product is
multiplied out at roots of unity x, where equal w_i are one power, and a Fourier transform gives the
coefficient.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]
Spectrum = NDArray[np.complex128]
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
    # Votes of a wrong answer -> wrong answers with as many; those with equal counts are alike.
    rivals = Counter(wrong.values())
    right_probabilities, taken_probabilities = binomial(num_right, k / n), binomial(n, k / n)
    total = 0.0
    # j: votes for the right answer among the k samples; it is at least k - (n - r).
    for j in range(max(1, k - n + num_right), min(num_right, k) + 1):
        share = right_probabilities[j] / taken_probabilities[k]
        if share > NEGLIGIBLE:
            total += share * _shared_point(rivals, n - num_right, k / n, j, k - j)
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


def _shared_point(rivals: Mapping[int, int], samples: int, p: float, j: int, others: int) -> float:
    """sum_t W(j, t) / (1 + t), where `others` of the `samples` that are not right are taken."""
    rivals = {votes: answers for votes, answers in rivals.items() if votes >= j}
    # Answers with fewer votes never reach j: they are taken like samples without a box.
    harmless = samples - sum(votes * answers for votes, answers in rivals.items())
    if not rivals:
        return float(binomial(samples, p)[others])
    size = samples + 1  # so many values of x determine a polynomial of degree `samples`
    x_X = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)  # the others are conjugates
    probabilities = {votes: binomial(votes, p) for votes in rivals}
    below_x_X = {votes: np.fft.rfft(taken[:j], size) for votes, taken in probabilities.items()}
    x_to_j_X = _power(x_X, j)
    tie_x_X = {votes: taken[j] * x_to_j_X for votes, taken in probabilities.items()}
    integral_X = np.zeros(len(x_X), dtype=np.complex128)
    max_ties = min(others // j, sum(rivals.values()))
    for y, weight in zip(*_integration_points(max_ties), strict=True):
        product_X = np.full(len(x_X), weight, dtype=np.complex128)
        for votes, answers in rivals.items():
            product_X *= _power(below_x_X[votes] + y * tie_x_X[votes], answers)
        integral_X += product_X
    integral_X *= _power(1 - p + p * x_X, harmless)
    return float(np.fft.irfft(integral_X, size)[others])


@cache
def _integration_points(degree: int) -> tuple[Probabilities, Probabilities]:
    """Points and weights of Gauss and Legendre on [0, 1] for polynomials up to this degree.

    degree / 2 + 1 points are exact. Polynomials of degree m approximate y^degree within
    2 exp(-m^2 / degree) on [0, 1], so about sqrt(degree) points are as good as exact.
    """
    exact = degree // 2 + 1
    enough = 8 + math.ceil(math.sqrt(40 * degree) / 2)
    points, weights = np.polynomial.legendre.leggauss(min(exact, enough))
    return (points + 1) / 2, weights / 2


def _power(base_X: Spectrum, exponent: int) -> Spectrum:
    """base ** exponent by squaring; numpy's own takes ten times as long."""
    power_X = np.ones_like(base_X)
    while exponent:
        if exponent & 1:
            power_X = power_X * base_X
        base_X = base_X * base_X
        exponent >>= 1
    return power_X
