"""Second turns of a warm-up: the policy's own wrong first one, the answer, a worked solution."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.config import ModelConfig
from counterpoise.config.load import load_config
from counterpoise.lab.warmup.second_turns import second_turns
from counterpoise.lab.warmup.supervise import solution_row
from counterpoise.model.load import load_policy
from counterpoise.task.load import load_task
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.math.verifier import MathVerifier

SETS = ["task.levels=[2]", "task.size=12", "task.heldout=1", "sample.max_new_tokens=80"]


def test_wrong_first_turns_and_what_is_said_to_them() -> None:
    policy = load_policy(ModelConfig(device="cpu"))
    config = load_config("tries-warmup", SETS)
    task = load_task(config.task)
    with MathVerifier() as verifier:
        found = second_turns(policy, task.train, config, verifier)
        again = second_turns(policy, task.train, config, verifier)
        none = load_config("demo", SETS)
        assert second_turns(policy, task.train, none, verifier) == []
    assert 0 < len(found) < len(task.train)
    for (prompt, tokens), (_, same) in zip(found, again, strict=True):
        np.testing.assert_array_equal(tokens, same)
        asked = policy.encode(prompt.problem)
        np.testing.assert_array_equal(tokens[: len(asked)], asked)
        end = int(np.flatnonzero(tokens == policy.end_tokens[0])[0])
        answer = extract_boxed(policy.decode(tokens[len(asked) : end]))
        assert answer != prompt.answer
        told = policy.decode(tokens[end + 1 :])
        assert told.endswith(prompt.problem)
        if answer and answer.isdigit():
            high = int(answer) > int(prompt.answer)
            assert told.startswith(
                f"{answer} is too many." if high else f"It is more than {answer}."
            )
        row = solution_row(policy, prompt, tokens)
        assert row.num_tokens == len(solution_row(policy, prompt).content.response_tokens)
        assert row.group != solution_row(policy, prompt).group
        np.testing.assert_array_equal(row.content.prompt_tokens, tokens)


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_preset_is_whole(split: str) -> None:
    config = load_config("tries-warmup")
    assert config.task.environment == "tries"
    assert getattr(load_task(config.task), split)
