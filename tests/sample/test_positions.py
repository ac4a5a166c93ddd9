"""A run that would outgrow its model says so at its start; vLLM, which would stop, refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.sample.positions import check_positions, describe_overflow
from counterpoise.types import Prompt

LENGTHS = (3, 20, 7)
PROMPTS = [(Prompt(str(n), "", ""), np.full(n, 5, dtype=np.int32)) for n in LENGTHS]


@pytest.mark.parametrize(
    ("prompt", "room", "said"),
    [
        (100, 156, ""),
        (0, 256, ""),
        (
            100, 157,
            "a prompt of 100 tokens and a response of 157 go beyond the 256 positions the model "
            "was made for: sample.max_new_tokens=156 stays within them",
        ),
        (
            0, 8192,
            "a response of 8,192 tokens goes beyond the 256 positions the model was made for: "
            "a lower sample.max_new_tokens stays within them",
        ),
        (
            256, 1,
            "a prompt of 256 tokens and a response of 1 go beyond the 256 positions the model "
            "was made for: a lower sample.max_prompt_tokens stays within them",
        ),
    ],
)  # fmt: skip
def test_both_numbers_are_named(prompt: int, room: int, said: str) -> None:
    assert describe_overflow(prompt, room, 256) == said


def test_the_native_sampler_warns_and_goes_on() -> None:
    policy, said = tiny.policy(max_position_embeddings=64), []
    check_positions(policy, PROMPTS, SampleConfig(max_new_tokens=44), said.append)
    assert said == []
    check_positions(policy, PROMPTS, SampleConfig(max_new_tokens=45), said.append)
    assert said == [
        "WARNING: a prompt of 20 tokens and a response of 45 go beyond the 64 positions the model "
        "was made for: sample.max_new_tokens=44 stays within them"
    ]


def test_vllm_is_refused_what_it_would_stop_at() -> None:
    policy = tiny.policy(max_position_embeddings=64)
    config = SampleConfig(max_new_tokens=45, engine="vllm")
    with pytest.raises(PoiseError, match=r"^sample\.engine=vllm: a prompt of 20 tokens and a res"):
        check_positions(policy, PROMPTS, config, lambda line: None)
