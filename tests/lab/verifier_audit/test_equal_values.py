"""The second opinion on equal answers, which shares nothing with the verifier."""

import pytest

from counterpoise.lab.verifier_audit.second_opinion import parse_answer, same_answer

SAME = [
    (r"\frac{1}{2}", "0.50"),
    (r"\frac12", "1/2"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\sqrt[3]{8}", "2"),
    ("1, 2, 3", "3,1,2"),
    (r"\{1, 2\}", "2, 1"),
    ("(1, 2)", r"\left( 1,2 \right)"),
    (r"30^\circ", "30"),
    (r"\$32,\!348", "32348"),
    ("11,\\! 111,\\! 111,\\! 100", "11111111100"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\cot x", r"\frac{\cos x}{\sin x}"),
    ("x = 5", "5"),
    ("5!", "120"),
    (r"8.7 \times 10^{8}", "870000000"),
    (r"1+2i", "2i+1"),
    (r"1\frac{4}{5}", "1.8"),
    (r"\text{Evelyn}", "evelyn"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
]
DIFFERENT = [
    ("1", "2"),
    ("(1, 2)", "(2, 1)"),
    ("(1, 2)", "[1, 2]"),
    ("1, 2", "1, 2, 2"),
    ("2400, 1350, 864", "2400, 1350864"),
    ("x+1", "x+2"),
    ("x", "y"),
    ("52_8", "52_9"),
    (r"\text{east}", r"\text{west}"),
    (r"1 \pm \sqrt{19}", r"1 + \sqrt{19}"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_same(left, right):
    assert same_answer(left, right)
    assert same_answer(right, left)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different(left, right):
    assert not same_answer(left, right)
    assert not same_answer(right, left)


@pytest.mark.parametrize("text", ["", "1+", "(1", r"\foo{1}", r"x \in A", r"2^{1009}", "150!"])
def test_no_value(text):
    assert parse_answer(text) is None
