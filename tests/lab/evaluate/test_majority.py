"""maj@k: against every subset, ties and silence included."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import combinations
from math import comb

import pytest

from counterpoise.lab.evaluate.majority import maj_at_k


def literal(votes: list[str | None], right: list[bool], k: int) -> float:
    points = []
    for subset in combinations(range(len(votes)), k):
        count: Counter[str] = Counter()
        for i in subset:
            if right[i]:
                count["the right one"] += 1
            elif votes[i] is not None:
                count[f"wrong {votes[i]}"] += 1
        best = max(count.values(), default=0)
        top = [answer for answer, n in count.items() if n == best]
        points.append(("the right one" in top) / len(top) if top else 0.0)
    return sum(points) / len(points)


def test_it_is_the_mean_over_all_subsets() -> None:
    rng = random.Random(0)
    for _ in range(150):
        n = rng.randint(1, 9)
        votes = [rng.choice([None, "a", "b", "c", "d"]) for _ in range(n)]
        right = [vote == "a" for vote in votes]
        for k in range(1, n + 1):
            assert maj_at_k(votes, right, k) == pytest.approx(literal(votes, right, k), abs=1e-12)


def by_polynomials(votes: list[str | None], right: list[bool], k: int) -> float:
    """The formula of majority.py, with choices counted in whole numbers, factor by factor."""
    wrong = Counter(v for v, is_right in zip(votes, right, strict=True) if v and not is_right)
    silent = len(votes) - sum(right) - wrong.total()
    points = Fraction(0)
    for j in range(1, min(sum(right), k) + 1):
        choices = {(v, 0): comb(silent, v) for v in range(silent + 1)}  # (taken, ties) -> choices
        for count in wrong.values():
            product: Counter[tuple[int, int]] = Counter()
            for (taken, ties), number in choices.items():
                for v in range(min(count, j, k - j - taken) + 1):
                    product[taken + v, ties + (v == j)] += number * comb(count, v)
            choices = product
        for (taken, ties), number in choices.items():
            if taken == k - j:
                points += Fraction(comb(sum(right), j) * number, 1 + ties)
    return float(points / comb(len(votes), k))


def test_it_is_the_formula_counted_in_whole_numbers() -> None:
    rng = random.Random(0)
    for _ in range(40):
        n, answers = rng.randint(10, 40), rng.choice([2, 5, 100])
        right = [rng.random() < 0.2 for _ in range(n)]
        votes = [rng.choice([None, *map(str, range(answers))]) for _ in range(n)]
        k = rng.randint(1, n)
        slow = by_polynomials(votes, right, k)
        assert maj_at_k(votes, right, k) == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("k", [1, 100, 4095, 4096])
def test_thousands_of_different_wrong_answers(k: int) -> None:
    """All tie with one right sample, which is taken with probability k/n: 1/n. Two win together."""
    n = 4096
    votes = [str(sample) for sample in range(n)]
    assert maj_at_k(votes, [sample < 1 for sample in range(n)], k) == pytest.approx(
        1 / n, abs=1e-12
    )
    both = k * (k - 1) / (n * (n - 1))
    one = 2 * k * (n - k) / (n * (n - 1))
    assert maj_at_k(votes, [sample < 2 for sample in range(n)], k) == pytest.approx(
        both + one / k, abs=1e-12
    )


def test_right_answers_vote_together_however_written() -> None:
    votes, right = ["1/2", "0.5", "3", "3"], [True, True, False, False]
    assert maj_at_k(votes, right, 4) == 0.5
    assert maj_at_k([*votes, "\\frac12"], [*right, True], 5) == 1.0


def test_of_one_sample_it_is_the_share_that_is_right() -> None:
    assert maj_at_k(["4", "5", None, "5"], [True, False, False, False], 1) == 0.25


def test_nobody_right_and_nobody_answering() -> None:
    assert maj_at_k([None, None], [False, False], 2) == 0.0
    assert maj_at_k(["3", "3"], [False, False], 2) == 0.0
    with pytest.raises(ValueError, match="maj@3"):
        maj_at_k(["3", "3"], [False, False], 3)


@pytest.mark.parametrize("k", [1000, 1001, 2000])
def test_two_equal_camps_of_a_thousand_samples(k: int) -> None:
    assert maj_at_k(["4", "5"] * 1000, [True, False] * 1000, k) == 0.5
