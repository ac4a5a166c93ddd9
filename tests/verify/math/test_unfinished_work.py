"""What work an answer leaves to the verifier, for references that are not numbers."""

import pytest

from counterpoise.verify.math.unfinished_work import find_operations, leaves_work


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\sqrt{3}+\sqrt{3}", r"2\sqrt{3}"),
        (r"\sqrt{4}\sqrt{3}", r"2\sqrt{3}"),
        (r"\frac{4}{2}\sqrt{3}", r"2\sqrt{3}"),
        (r"2 \cdot 3\sqrt{3}", r"6\sqrt{3}"),
        (r"\sqrt{50+1}", r"\sqrt{51}"),
        (r"\sqrt{4 \cdot 3} = 2\sqrt{3}", r"2\sqrt{3}"),
        (r"\arcsin 1", r"\frac{\pi}{2}"),
        (r"\tan 30^\circ", r"\frac{\sqrt{3}}{3}"),
        (r"3^2 \cdot 3^3", "3^{5}"),
        ("(1+2i)(3-4i)", "11+2i"),
        ("(1+i)^8", "16+0i"),
        ("(2+4, 31)", "(6, 31)"),
        ("(3!, 31)", "(6, 31)"),
        (r"(\sqrt{36}, 31)", "(6, 31)"),
        ("(2^3, 31)", "(8, 31)"),
        (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
        (r"\int_0^x t\,dt", r"\frac{x^2}{2}"),
    ],
)
def test_work_left_undone(answer, gold):
    assert leaves_work(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\sqrt{12}", r"2\sqrt{3}"),
        (r"2 \cdot \sqrt{3}", r"2\sqrt{3}"),
        (r"3^{-1/2}", r"\frac{\sqrt{3}}{3}"),
        (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
        (r"2(9+\pi)", r"18+2\pi"),
        ("243", "3^{5}"),
        (r"y = \sqrt{51}", r"\sqrt{51}"),
        ("-5i + 6", "6 - 5i"),
        ("(-6, -31)", "(-6, -31)"),
        (r"\frac{n^2+n}{2}", r"\frac{n(n+1)}{2}"),
        (r"\frac{(2n)!}{n!^2}", r"\binom{2n}{n}"),
        (r"343945385", r"2021 \cdot 505 \cdot 337"),
    ],
)
def test_closed_forms(answer, gold):
    assert not leaves_work(answer, gold)


def test_operations():
    assert find_operations(r"\frac{12}{2} + 3^2") == {"whole_ratio", "sum", "root_or_power"}
    assert find_operations(r"6 \text{ cm}^2 ") == {"root_or_power"}
    assert find_operations(r"x = -6") == frozenset()
