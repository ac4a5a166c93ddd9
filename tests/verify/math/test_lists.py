"""Lists of numbers are settled entry by entry."""

import pytest

from counterpoise.verify.math.decide import decide_by_text
from counterpoise.verify.math.lists import compare_lists, split_entries


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("7, 5, 3", "3, 5, 7", True),
        (r"\{3, 5, 7\}", "3,5,7", True),
        ("3, 5, 8", "3, 5, 7", False),
        ("3, 3, 5", "3, 5, 5", False),
        ("3, 5", "3, 5, 7", False),
        ("3", "3, 3", False),
        (r"\pm 3", "3, -3", None),
        (r"3, 5 \text{ and } 7", "7, 5, 3", True),
        ("y, x", "x, y", True),
        ("(6, 31)", "(6, 31.0)", True),
        ("(31, 6)", "(6, 31)", False),
        ("(12/2, 31)", "(6, 31)", False),
        (r"(6, \frac{2\pi}{4})", r"(6, \frac{\pi}{2})", None),
        (r"(7, \frac{2\pi}{4})", r"(6, \frac{\pi}{2})", False),
        ("[0, 1)", "[0, 1]", None),
        ("(1,2),(3,4)", "(1,2),(3,4)", None),
        ("3, 500", "3,500", True),
        ("a = 1, b = 2", "1, 2", None),
    ],
)
def test_compare_lists(answer, gold, expected):
    assert compare_lists(answer, gold) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        (r"8.7 \times 10^8, 2", "870000000, 2", True),
        (r"(8.7 \times 10^8, 2)", "(870000000, 2)", True),
        (r"8.7 \times 10^8, 3", "870000000, 2", False),
        ("1+1, 3", "2, 3", False),
        ("12/2, 3", "6, 3", False),
    ],
)
def test_a_number_of_a_list_may_be_written_as_a_number_alone(answer, gold, expected):
    assert decide_by_text(answer, gold) is expected


@pytest.mark.parametrize("text", ["6", "(6)", r"(0,9) \cup (9,36)", "(1", "", "x = 1, 2"])
def test_not_a_list(text):
    assert split_entries(text) is None
