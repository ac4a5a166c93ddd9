"""The last balanced box, on any input."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.verify.math.boxed import extract_boxed


@pytest.mark.parametrize(
    ("response", "content"),
    [
        (r"so \boxed{6}", "6"),
        (r"\boxed{ 6 }", "6"),
        (r"\boxed {6}", "6"),
        (r"\boxed{\frac{1}{2}} and on", r"\frac{1}{2}"),
        (r"\boxed{5} no, \boxed{6}", "6"),
        (r"\boxed{\boxed{6}}", "6"),
        (r"\boxed{1 + \boxed{6} }", "6"),
        (r"\boxed{\{6, 7\}}", r"\{6, 7\}"),
        (r"\boxed{6\\{7}}", r"6\\{7}"),
        (r"\boxed{}", ""),
        (r"a { stray brace, \boxed{6}", "6"),
        (r"a } stray brace, \boxed{6}", "6"),
        (r"\boxed{5} then cut off: \boxed{6", "5"),
        (r"\boxed{6", None),
        (r"\boxed 6", None),
        (r"\fbox{6}", None),
        ("6", None),
        ("", None),
        ("\\", None),
    ],
)
def test_boxed(response, content):
    assert extract_boxed(response) == content


def test_long_and_deep_inputs():
    assert extract_boxed("\\boxed{" * 50_000) is None
    assert extract_boxed("\\boxed{" * 50_000 + "}" * 50_000) == ""
    assert extract_boxed("{" * 100_000 + "\\boxed{6}") == "6"
    assert extract_boxed("\\" * 100_001) is None


@given(st.text(alphabet="\\{}boxed6 ", max_size=60))
def test_any_text(response):
    content = extract_boxed(response)
    assert content is None or content in response


@given(st.text(), st.text(alphabet="0123456789+- ", max_size=9))
def test_a_final_box_is_found_behind_any_text(before, content):
    prefix = before.rstrip("\\")  # a backslash before it would escape the box's own
    assert extract_boxed(f"{prefix}\\boxed{{{content}}}") == content.strip()


def test_a_million_boxes_take_no_time_and_the_last_one_counts():
    text = "\\boxed{1}" * 1_000_000
    start = time.process_time()
    assert extract_boxed(text + "\\boxed{2}") == "2"
    assert extract_boxed("\\boxed{" * 1_000_000) is None
    assert time.process_time() - start < 1.0
