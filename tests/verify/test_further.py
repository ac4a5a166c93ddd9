"""Rewards beside the verifier's: read from the run file, computed for every response."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.config import RunConfig, SampleConfig, VerifyConfig
from counterpoise.errors import PoiseError
from counterpoise.types import Prompt, Response
from counterpoise.verify.further import further, shares_of


@pytest.mark.parametrize(
    ("also", "fault"),
    [
        (["overlnog"], "verify.also: unknown reward 'overlnog'"),
        (["overlong", "overlong=2"], "verify.also: 'overlong' is there twice"),
        (["overlong=much"], "verify.also: 'overlong=much' has no share above 0"),
        (["overlong=0"], "no share above 0"),
        (["overlong=-1"], "no share above 0"),
        (["overlong=inf"], "no share above 0"),
        (["overlong="], "no share above 0"),
    ],
)
def test_faults_name_the_entry(also: list[str], fault: str) -> None:
    with pytest.raises(PoiseError, match=fault):
        shares_of(also)


def test_every_response_has_every_reward() -> None:
    def response(length: int, text: str) -> Response:
        return Response(np.zeros(length, np.int32), np.zeros(length, np.float32), text, True)

    config = RunConfig(
        sample=SampleConfig(max_new_tokens=10),
        verify=VerifyConfig(also=["equations=0.5", "overlong"], overlong_tokens=4),
    )
    prompts = [Prompt("a", "?", "1"), Prompt("b", "?", "2")]
    responses = [[response(8, "1 + 1 = 2"), response(2, "1 + 1 = 3")], [response(10, "")]]
    assert further(prompts, responses, config) == [
        [{"equations": 1.0, "overlong": -0.5}, {"equations": 0.0, "overlong": 0.0}],
        [{"equations": 0.0, "overlong": -1.0}],
    ]
    assert further(prompts, responses, RunConfig()) == [[{}, {}], [{}]]
