"""verl's own reward function, unchanged, as the verifier of a native run."""

from __future__ import annotations

import pytest

from counterpoise.types import Prompt
from counterpoise.variants import VERIFIERS
from counterpoise.verify.reward_signatures import describe_reward
from counterpoise.verify.scores import score_responses

pytest.importorskip("verl")


def test_default_compute_score_runs_unchanged() -> None:
    name = "verl.utils.reward_score:default_compute_score"
    assert describe_reward(name).endswith("verl's compute_score, called once for each response")
    columns = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "72"}}
    prompts = [Prompt(str(number), "?", "", columns=columns) for number in range(3)]
    responses = ["so 72\n#### 72", "so 71\n#### 71", "so 72"]
    scores = score_responses(VERIFIERS.load(name)(5.0, 2), responses, prompts)
    assert scores.rewards == [1.0, 0.0, 0.0]  # the last one lacks GSM8K's mark
