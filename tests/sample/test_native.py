"""The sampler: exact log-probabilities, the right distribution, and no influence of neighbours."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.sample import kv_budget
from counterpoise.sample.kv_budget import CachePlan, plan_cache
from counterpoise.sample.kv_cache import Fork
from counterpoise.sample.native import sample
from counterpoise.types import Response

PROMPTS = [
    np.array(ids, dtype=np.int32) for ids in ([5, 9, 11], [7], [3, 4, 5, 6, 7, 8, 9], [20, 21])
]
SEEDS = [[100 * p + g for g in range(5)] for p in range(len(PROMPTS))]
CONFIG = SampleConfig(max_new_tokens=24)


def reference_logprobs(policy: Policy, prompt: np.ndarray, response: Response, temperature=1.0):
    """A plain forward pass by transformers over prompt and response."""
    ids = torch.tensor([[*prompt.tolist(), *response.tokens.tolist()]])
    with torch.no_grad():
        logprobs = (policy.model(ids).logits[0] / temperature).log_softmax(-1)
    return logprobs[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_a_plain_forward_pass(architecture: str, temperature: float) -> None:
    policy = tiny.policy(architecture)
    drawn = sample(policy, PROMPTS, SEEDS, replace(CONFIG, temperature=temperature))
    for prompt, responses in zip(PROMPTS, drawn, strict=True):
        for response in responses:
            expected = reference_logprobs(policy, prompt, response, temperature)
            np.testing.assert_allclose(response.logprobs, expected, atol=1e-4)


def test_embedded_model_logprobs_equal_a_plain_forward_pass() -> None:
    from counterpoise.config import ModelConfig
    from counterpoise.model.load import load_policy
    from counterpoise.task.word_problems import make_problem

    policy = load_policy(ModelConfig(device="cpu"))
    prompts = [policy.encode(make_problem("heldout", i).problem) for i in range(4)]
    drawn = sample(policy, prompts, SEEDS, SampleConfig(max_new_tokens=112))
    for prompt, responses in zip(prompts, drawn, strict=True):
        for response in responses:
            expected = reference_logprobs(policy, prompt, response)
            np.testing.assert_allclose(response.logprobs, expected, atol=1e-4)


def test_a_rollout_depends_on_its_own_seed_alone() -> None:
    policy = tiny.policy()
    together = sample(policy, PROMPTS, SEEDS, CONFIG)
    for p, prompt in enumerate(PROMPTS):
        for g in (0, 3):
            (alone,) = sample(policy, [prompt], [[SEEDS[p][g]]], CONFIG)
            np.testing.assert_array_equal(alone[0].tokens, together[p][g].tokens)
            np.testing.assert_allclose(alone[0].logprobs, together[p][g].logprobs, atol=1e-5)


def test_cutting_the_batch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny.policy()
    whole = sample(policy, PROMPTS, SEEDS, CONFIG)
    monkeypatch.setattr(kv_budget, "MAX_ROWS_CPU", 7)  # 13 of 20 rows wait
    cut = sample(policy, PROMPTS, SEEDS, CONFIG)
    for a, b in zip(chain(*whole), chain(*cut), strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)


def test_the_cache_decides_how_many_rows_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny.policy()
    per_token = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, head size, bytes
    assert policy.decoder.kv_bytes_per_token == per_token
    forks = [Fork(0, 7, seed, 24) for seed in range(10)]
    monkeypatch.setattr(kv_budget, "CPU_CACHE_BYTES", 10 * 31 * (per_token + 16))
    assert plan_cache(policy.decoder, forks) == CachePlan(10, 7, 31)
    # One row more and some of them wait: then rows start at different times, in 64 columns more.
    assert plan_cache(policy.decoder, [*forks, forks[0]]) == CachePlan(3, 7, 95)
    long_fork = replace(forks[0], max_new_tokens=10**9)
    assert plan_cache(policy.decoder, [long_fork]).rows == 1
    monkeypatch.setattr(kv_budget, "CPU_CACHE_BYTES", 1 << 40)
    assert plan_cache(policy.decoder, 60 * forks).rows == kv_budget.MAX_ROWS_CPU


def test_responses_end_at_the_first_end_token() -> None:
    policy = tiny.policy()
    responses = list(chain(*sample(policy, PROMPTS, SEEDS, SampleConfig(max_new_tokens=200))))
    assert any(r.finished for r in responses)
    for response in responses:
        assert 1 <= len(response.tokens) == len(response.logprobs) <= 200
        assert (1 in response.tokens[:-1]) is False
        assert response.finished == (response.tokens[-1] == 1)
        assert response.finished or len(response.tokens) == 200


def test_first_token_follows_the_distribution() -> None:
    """Chi-square of 4,000 first tokens against the model's probabilities, likely tokens only."""
    policy = tiny.policy()
    prompt, draws = PROMPTS[0], 4000
    seeds = [list(range(draws))]
    drawn = sample(policy, [prompt], seeds, SampleConfig(max_new_tokens=1))[0]
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt.tolist()])).logits[0, -1]
    expected = draws * logits.softmax(-1).numpy()
    counted = np.bincount([r.tokens[0] for r in drawn], minlength=tiny.VOCABULARY)
    likely = expected > 5
    chi2 = float((((counted - expected) ** 2) / expected)[likely].sum())
    freedom = int(likely.sum())
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5


def test_top_k_and_top_p_keep_only_likely_tokens() -> None:
    policy = tiny.policy()
    with torch.no_grad():
        logits = policy.model(torch.tensor([PROMPTS[0].tolist()])).logits[0, -1]
    order = logits.argsort(descending=True).tolist()
    one = SampleConfig(max_new_tokens=1)
    seeds = [list(range(200))]
    top_k = sample(policy, [PROMPTS[0]], seeds, replace(one, top_k=3))[0]
    assert {int(r.tokens[0]) for r in top_k} == set(order[:3])
    greedy = sample(policy, [PROMPTS[0]], seeds, replace(one, top_p=1e-6))[0]
    assert {int(r.tokens[0]) for r in greedy} == {order[0]}
    # log-probabilities stay those of the whole distribution
    assert greedy[0].logprobs[0] == pytest.approx(float(logits.log_softmax(-1)[order[0]]), abs=1e-5)


def test_the_smallest_nucleus() -> None:
    from counterpoise.sample.choose_token import truncate_distribution

    probabilities = torch.tensor([[0.1, 0.5, 0.15, 0.25]])
    assert truncate_distribution(probabilities, 0.7, 0).tolist() == [[0.0, 0.5, 0.0, 0.25]]
    assert truncate_distribution(probabilities, 0.5, 0).tolist() == [[0.0, 0.5, 0.0, 0.0]]
    assert truncate_distribution(probabilities, 1.0, 0).equal(probabilities)


def test_tokens_as_likely_as_the_last_one_stay() -> None:
    """As on a GPU: which of two equal tokens is drawn is not a matter of their numbers."""
    from counterpoise.sample.choose_token import truncate_distribution

    tied = torch.tensor([[0.3, 0.4, 0.3, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert truncate_distribution(tied, 0.5, 0).equal(tied)
    assert truncate_distribution(tied, 1.0, 2).equal(tied)
    assert truncate_distribution(tied, 0.4, 0)[0].tolist() == pytest.approx([0.0, 0.4, 0.0, 0.0])


def test_a_uniform_of_almost_one_never_leaves_the_support() -> None:
    from counterpoise.sample.choose_token import choose_tokens

    logits = torch.full((1, 6), -torch.inf)
    logits[0, 2] = logits[0, 3] = 0.0
    for u in (0.0, 0.4999, 0.5, 1 - 2**-24):
        token, logprob = choose_tokens(logits, torch.tensor([u]), 1.0, 1.0, 0)
        assert int(token) == (2 if u < 0.5 else 3)
        assert float(logprob) == pytest.approx(np.log(0.5))


def test_no_prompts() -> None:
    assert sample(tiny.policy(), [], [], CONFIG) == []


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt without tokens"):
        sample(tiny.policy(), [PROMPTS[0], np.empty(0, dtype=np.int32)], SEEDS[:2], CONFIG)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_scores_that_are_not_numbers_end_the_run_with_a_line(top_p: float) -> None:
    policy = tiny.policy()
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[9] = torch.nan  # a token of the first prompt
    with pytest.raises(PoiseError, match="scores of the next token are not finite"):
        sample(policy, PROMPTS, SEEDS, replace(CONFIG, top_p=top_p))


def test_a_prompt_with_tokens_that_the_model_lacks_is_refused() -> None:
    policy = tiny.policy()
    size = len(policy.decoder.unembedding)
    with pytest.raises(PoiseError, match=f"its tokenizer uses number {size}: they do not belong"):
        sample(policy, [PROMPTS[0], np.array([3, size], dtype=np.int32)], SEEDS[:2], CONFIG)
