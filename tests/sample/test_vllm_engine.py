"""The real vLLM, one engine: in step with the trainer whatever the weights; seeds; prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sample.vllm_draws import CONFIG, SEEDS, differences, real_vllm, rows, shaken, some_prompts

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy, load_policy
from counterpoise.model.scoring import forward
from counterpoise.sample.vllm import VLLMSampler
from counterpoise.types import Ints

pytestmark = real_vllm


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(device="cpu"))


@pytest.fixture(scope="module")
def prompts(policy: Policy) -> list[Ints]:
    return some_prompts(policy)


@pytest.fixture(scope="module")
def engine(policy: Policy) -> Iterator[VLLMSampler]:
    made = VLLMSampler(policy, CONFIG)
    yield made
    made.close()


def test_what_a_response_holds(engine: VLLMSampler, policy: Policy, prompts: list[Ints]) -> None:
    drawn = engine(policy, prompts, SEEDS, CONFIG.sample)
    assert [len(group) for group in drawn] == [4] * len(prompts)
    responses = [response for group in drawn for response in group]
    for response in responses:
        assert response.tokens.dtype == np.int32
        assert response.logprobs.shape == response.tokens.shape
        assert (response.logprobs <= 0).all()
        assert response.text == policy.decode(response.tokens)
        assert response.finished == (response.tokens[-1] in policy.end_tokens)
    assert np.mean([response.finished for response in responses]) > 0.9
    assert len({response.text for response in responses}) > len(responses) // 2
    short = engine(policy, prompts, SEEDS, replace(CONFIG.sample, max_new_tokens=5))
    assert {(len(r.tokens), r.finished) for group in short for r in group} == {(5, False)}
    for whole, cut in zip(responses, (r for group in short for r in group), strict=True):
        assert whole.tokens[:5].tolist() == cut.tokens.tolist()
    assert engine(policy, [], [], CONFIG.sample) == []


def test_the_same_seed_the_same_response(
    engine: VLLMSampler, policy: Policy, prompts: list[Ints]
) -> None:
    """Again, and in other company; other seeds draw other tokens."""
    first = engine(policy, prompts, SEEDS, CONFIG.sample)
    again = engine(policy, prompts, SEEDS, CONFIG.sample)
    other = engine(policy, prompts, [[s + 7 for s in seeds] for seeds in SEEDS], CONFIG.sample)
    texts = [[[r.text for r in group] for group in drawn] for drawn in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    alone = engine(policy, prompts[2:3], SEEDS[2:3], CONFIG.sample)
    assert [r.text for r in alone[0]] == texts[0][2]


def test_weights_of_the_trainer_before_every_draw(engine: VLLMSampler, prompts: list[Ints]) -> None:
    """Four sets of weights: within 1e-4 of the trainer each time, though far from one another."""
    policy = load_policy(ModelConfig(device="cpu"))
    last = None
    for seed in range(4):
        drawn = engine(policy, prompts, SEEDS, CONFIG.sample)
        found = differences(policy, prompts, drawn, 1.0)
        assert found.max() < 1e-4
        assert found.mean() < 1e-6
        if last is not None:  # what stale weights, or keys of theirs, would look like
            assert differences(policy, prompts, last, 1.0).mean() > 1e-3
        last = drawn
        shaken(policy, seed)


def test_draws_are_from_the_policy(
    engine: VLLMSampler, policy: Policy, prompts: list[Ints]
) -> None:
    """E[log p] = -entropy: their sum over tokens is noise around 0."""
    made = rows(prompts, engine(policy, prompts, SEEDS, CONFIG.sample))
    with torch.no_grad():
        result = forward(policy, made, 1.0)
    sums = (result.logprobs_M + result.entropies_M).numpy()
    assert abs(sums.mean()) < 4 * sums.std() / len(sums) ** 0.5


def test_prompts_are_read_once(engine: VLLMSampler, policy: Policy, prompts: list[Ints]) -> None:
    """The whole blocks of a prompt are computed for its first response and found by the others."""
    found: list[Any] = []
    generate = engine.engine.generate
    engine.engine.generate = lambda *a, **k: found.extend(generate(*a, **k)) or found
    try:
        engine(policy, prompts, SEEDS, CONFIG.sample)
    finally:
        engine.engine.generate = generate
    cached = [request.num_cached_tokens for request in found]
    whole = [(len(prompt) - 1) // 32 * 32 for prompt in prompts]
    assert cached == [n for tokens in whole for n in (0, tokens, tokens, tokens)]


@pytest.mark.parametrize("cut", [{"top_p": 0.8}, {"top_k": 3}])
def test_cut_at_temperature_one(
    engine: VLLMSampler, policy: Policy, prompts: list[Ints], cut: dict[str, Any]
) -> None:
    """Fewer tokens may be drawn, and log-probabilities stay those of the whole distribution."""
    config = replace(CONFIG.sample, **cut)
    drawn = engine(policy, prompts, SEEDS, config)
    assert differences(policy, prompts, drawn, 1.0).max() < 1e-4
    whole = engine(policy, prompts, SEEDS, CONFIG.sample)
    mean = [np.concatenate([r.logprobs for g in d for r in g]).mean() for d in (drawn, whole)]
    assert mean[0] > mean[1]


def test_too_long_for_the_engine(engine: VLLMSampler, policy: Policy) -> None:
    prompt = np.full(1000, 5, dtype=np.int32)
    with pytest.raises(PoiseError, match=r"1128 tokens.*started for 1024: raise sample\.max_prom"):
        engine(policy, [prompt], [[1]], CONFIG.sample)
