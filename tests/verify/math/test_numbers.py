"""What counts as a number in evaluated form, and when two of them agree."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.verify.math.numbers import numbers_agree, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6", 6),
        ("-6.50", Fraction(-13, 2)),
        (".5", Fraction(1, 2)),
        ("1,234,567", 1234567),
        (r"1{,}234", 1234),
        (r"10,\! 080", 10080),
        ("58 500", 58500),
        ("3/4", Fraction(3, 4)),
        (r"\frac43", Fraction(4, 3)),
        (r"\dfrac{-1}{1997}", Fraction(-1, 1997)),
        (r"-1\frac{3}{4}", Fraction(-7, 4)),
        ("1 3/4", Fraction(7, 4)),
        (r"0.\overline{36}", Fraction(4, 11)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"8.7 \times 10^{8}", 870_000_000),
        ("8.7e-2", Fraction(87, 1000)),
        ("6 km/h", 6),
        (r"\$18.90", Fraction(189, 10)),
        (r"864 \mbox{ inches}^2", 864),
        (r"90^{\circ}", 90),
        ("x_{1} = 6", 6),
    ],
)
def test_values(text, value):
    stated = parse_number(text)
    assert stated is not None
    assert stated.value == value


@pytest.mark.parametrize("text", ["6m", r"\frac{37}{4} m", "2.2 \\tau", "7.6 Z", "2k", "6 apples"])
def test_a_reference_with_bare_letters_is_no_number(text):
    assert parse_number(text, bare_units=False) is None


@pytest.mark.parametrize("text", ["6/0", "1e1001", "10^{1001}", "1 5/4", "9" * 3000, "6 million"])
def test_no_number(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("0.333333", "1/3", True),
        ("0.3333", "1/3", False),
        ("333333/1000000", "1/3", False),  # no point, no rounding
        ("0.0", r"7.4 \times 10^{-12}", False),  # Math-Verify rounds both to 0
        ("0.0000000", "0", True),
        ("8%", "8", True),
        ("8%", "0.08", True),
        ("0.08", "8%", True),
        ("8", "8%", True),
        ("800", "8%", False),
        ("y = 5", "x = 5", False),
        ("5", "x = 5", True),
        ("2/4", "1/2", True),
        ("12/2", "6", False),
        ("12/2", "18/3", True),
        (r"12 \times 10^{2}", "1200", False),
        (r"1.2 \times 10^{3}", "1200", True),
        (r"12 \times 10^{2}", r"1.2 \times 10^{3}", True),
    ],
)
def test_agree(answer, gold, expected):
    stated, reference = parse_number(answer), parse_number(gold, bare_units=False)
    assert stated is not None
    assert reference is not None
    assert numbers_agree(stated, reference) is expected


@given(st.integers(), st.integers(min_value=2, max_value=10**6))
def test_every_fraction_reads_back(top, bottom):
    stated = parse_number(f"\\frac{{{top}}}{{{bottom}}}")
    assert stated is not None
    assert stated.value == Fraction(top, bottom)
    assert stated.divisible == (top % bottom == 0)


@given(st.integers())
def test_thousands_separators_read_back(value):
    assert parse_number(f"{value:,}") == parse_number(str(value))


@given(st.text(max_size=50))
def test_any_text_is_read(text):
    parse_number(text)
