"""The work of both sides is what it claims to be, and the two updates are one function."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import UpdateConfig
from counterpoise.lab.speed import agreement, update, workload
from counterpoise.lab.speed.workload import MAX_PROMPT_TOKENS, MIN_PROMPT_TOKENS, Workload
from counterpoise.model.load import Policy
from counterpoise.update.step import StepSettings, accumulate_gradient


def test_prompts_have_the_promised_length() -> None:
    policy = workload.load_endless_policy("embedded")
    texts = workload.make_texts(policy.tokenizer, 40)
    sizes = [len(tokens) for tokens in workload.encode_texts(policy.tokenizer, texts)]
    assert min(sizes) >= MIN_PROMPT_TOKENS
    assert max(sizes) <= MAX_PROMPT_TOKENS
    assert len(set(texts)) == 40
    assert len(set(sizes)) > 5


def test_half_of_every_group_is_right() -> None:
    rewards = workload.AlternatingVerifier().score([""] * 24, [""] * 24).rewards
    assert [sum(rewards[i : i + 8]) for i in (0, 8, 16)] == [4, 4, 4]


def test_made_up_rows_share_prompts_and_carry_signal() -> None:
    rows = workload.make_rows(50, groups=3, group_size=4, prompt_tokens=20, response_tokens=40)
    assert len({row.content.prompt_tokens.tobytes() for row in rows}) == 3
    assert all(row.sign for row in rows)
    assert sum(row.advantage for row in rows) == 0
    assert {36 <= row.num_tokens <= 44 for row in rows} == {True}


def test_one_iteration_of_a_run_is_the_work() -> None:
    job = Workload("embedded", 64, 8, 128)
    config = workload.run_config(job)
    assert (job.rollouts, str(job)) == (512, "64 x 8 x 128")
    assert (config.sample.prompts, config.sample.group_size) == (64, 8)
    assert (config.batch.composer, config.batch.steps, config.monitor.every) == ("whole", 1, 0)
    assert workload.run_config(job, steps=4).batch.composer == "grouped"


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_padded_update_has_our_gradient(architecture: str) -> None:
    """Same rows, same loss: the peer of the benchmark does the same work."""
    policy = tiny.policy(architecture)
    rows, config = tiny.rows(groups=3, size=4, off_policy=0.5), UpdateConfig()
    accumulate_gradient(policy, rows, StepSettings(config, temperature=1.0, max_new_tokens=20))
    ours = _gradient(policy)
    update.padded_step(policy, None, rows, config)
    theirs = _gradient(policy)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def _gradient(policy: Policy) -> torch.Tensor:
    flat = [w.grad.flatten() for w in policy.model.parameters() if w.grad is not None]
    policy.model.zero_grad()
    return torch.cat(flat)


def test_errors_of_a_gradient_in_closed_form() -> None:
    reference = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([0.0, 4.0])}
    turned = {"a": torch.tensor([0.0, 3.0]), "b": torch.tensor([0.0, 4.0])}
    found = agreement.gradient_errors(turned, reference)
    assert found["relative"] == pytest.approx(np.sqrt(18) / 5)
    np.testing.assert_allclose(found["cosines"], [0.0, 1.0])
    assert found["worst"] == "a"
    with pytest.raises(AssertionError, match="different parameters"):
        agreement.gradient_errors({"a": turned["a"]}, reference)
