"""DAPO's soft overlong punishment, by its three lines."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.config import RunConfig, SampleConfig, VerifyConfig
from counterpoise.types import Prompt, Response
from counterpoise.verify.overlong import overlong_punishment, reward

PROMPT = Prompt("p", "?", "1")


def response(length: int) -> Response:
    return Response(np.zeros(length, np.int32), np.zeros(length, np.float32), "", finished=True)


def by_the_paper(length: int, limit: int, last: int) -> float:
    if length <= limit - last:
        return 0.0
    if length <= limit:
        return ((limit - last) - length) / last
    return -1.0


@pytest.mark.parametrize(("limit", "last"), [(20480, 4096), (10, 1), (10, 10), (7, 3)])
def test_all_lengths_as_in_the_paper(limit: int, last: int) -> None:
    for length in {0, 1, limit - last, limit - last + 1, limit - 1, limit, limit + 5}:
        assert overlong_punishment(length, limit, last) == pytest.approx(
            by_the_paper(length, limit, last)
        )


def test_known_values_and_no_negative_zero() -> None:
    assert [overlong_punishment(n, 100, 20) for n in (0, 80, 90, 100)] == [0.0, 0.0, -0.5, -1.0]
    assert str(overlong_punishment(80, 100, 20)) == "0.0"


def test_the_run_says_how_long_and_a_fifth_is_the_default() -> None:
    config = RunConfig(sample=SampleConfig(max_new_tokens=50))
    assert [reward(PROMPT, response(n), config) for n in (40, 45, 50)] == [0.0, -0.5, -1.0]
    config = RunConfig(
        sample=SampleConfig(max_new_tokens=50), verify=VerifyConfig(overlong_tokens=40)
    )
    assert [reward(PROMPT, response(n), config) for n in (10, 20, 50)] == [0.0, -0.25, -1.0]
