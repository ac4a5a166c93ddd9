"""Math-Verify's verdicts, with the box read whole and one point tried first."""

import pytest

from counterpoise.verify.math.equivalence import _parse, differ_at_a_point, equivalent


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\sqrt{12}", r"2\sqrt{3}"),
        (r"\frac{n^2+n}{2}", r"\frac{n(n+1)}{2}"),
        (r"2x+3=y", "y = 2x + 3"),
        (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}"),
        (r"(3, \pi/2)", r"\left( 3, \frac{\pi}{2} \right)"),
        (r"2+\frac{\pi}{4}-\sqrt{2}", r"\frac \pi4 + 2 - \sqrt2"),
        (r"\sin^2 x", r"1-\cos^2 x"),
        (r"(-\infty,0) \cup \{1\}", r"(-\infty, 0) \cup\{1\}."),
        ("304.8", r"\frac{1524}{5}"),
    ],
)
def test_equal(answer, gold):
    assert equivalent(answer, gold)
    assert not differ_at_a_point(_parse(answer), _parse(gold))


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\sqrt{13}", r"2\sqrt{3}"),
        ("x^2+1", "x^2+2"),
        ("x", "y"),
        ("1, 2, 3", "1, 2"),
        # Math-Verify's default reading finds the gold inside these, or these inside the gold.
        ("2", r"\hbar \omega(v+1 / 2)-\frac{E_{0}^{2} e^{2}}{2 m \omega^{2}}"),
        (r"\frac{2}{3}", r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}"),
        ("0", r"f(x)=a x+b, where \mho(a)=0"),
    ],
)
def test_different(answer, gold):
    assert not equivalent(answer, gold)
