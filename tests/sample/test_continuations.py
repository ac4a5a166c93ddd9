"""Forks: token for token what `sample` would draw with the prefix as a prompt."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.config import SampleConfig
from counterpoise.sample import continuations as forking
from counterpoise.sample import fork_queue, kv_budget
from counterpoise.sample.continuations import ContinuationStart, sample_continuations
from counterpoise.sample.native import sample

SEQUENCES = [
    np.array(ids, dtype=np.int32)
    for ids in ([5, 9, 11, 40, 41, 42, 43], [7, 8], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])
]
STARTS = [
    ContinuationStart(0, 3, (1, 2, 3), 9),
    ContinuationStart(2, 12, (4,), 1),
    ContinuationStart(0, 7, (5, 6), 4),
    ContinuationStart(1, 1, (7, 8, 9, 10, 11), 12),
    ContinuationStart(2, 3, (1, 2), 6),
    ContinuationStart(0, 3, (12,), 5),
]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_fork_is_a_sample_of_its_prefix(architecture: str) -> None:
    policy = tiny.policy(architecture)
    drawn = sample_continuations(policy, SEQUENCES, STARTS, SampleConfig())
    for start, responses in zip(STARTS, drawn, strict=True):
        prefix = SEQUENCES[start.sequence][: start.length]
        config = SampleConfig(max_new_tokens=start.max_new_tokens)
        (expected,) = sample(policy, [prefix], [start.seeds], config)
        for mine, theirs in zip(responses, expected, strict=True):
            np.testing.assert_array_equal(mine.tokens, theirs.tokens)
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-5)
            assert (mine.text, mine.finished) == (theirs.text, theirs.finished)


def test_embedded_model_forks_its_own_rollouts() -> None:
    """At every position of a rollout: what a plain `sample` draws from there."""
    from counterpoise.config import ModelConfig
    from counterpoise.model.load import load_policy
    from counterpoise.task.word_problems import make_problem

    policy, config = load_policy(ModelConfig(device="cpu")), SampleConfig(max_new_tokens=112)
    prompts = [policy.encode(make_problem("heldout", i).problem) for i in range(2)]
    rollouts = [drawn[0] for drawn in sample(policy, prompts, [[1], [2]], config)]
    sequences = [np.concatenate((p, r.tokens)) for p, r in zip(prompts, rollouts, strict=True)]
    starts = [
        ContinuationStart(i, len(prompts[i]) + kept, (kept, 1000 + kept), 112 - kept)
        for i in range(2)
        for kept in range(0, len(rollouts[i].tokens) - 1, 7)
    ]
    drawn = sample_continuations(policy, sequences, starts, config)
    prefixes = [sequences[start.sequence][: start.length] for start in starts]
    plain = sample(policy, prefixes, [start.seeds for start in starts], config)
    for start, mine, theirs in zip(starts, drawn, plain, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a.tokens, b.tokens[: start.max_new_tokens])


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 9), st.integers(1, 25))
def test_cutting_the_batch_changes_nothing(rows: int, tokens: int) -> None:
    policy = tiny.policy()
    whole = sample_continuations(policy, SEQUENCES, STARTS, SampleConfig())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_budget, "MAX_ROWS_CPU", rows)
        patch.setattr(forking, "PREFILL_TOKENS", tokens)
        patch.setattr(fork_queue, "PASS_TOKENS_CPU", tokens)
        cut = sample_continuations(policy, SEQUENCES, STARTS, SampleConfig())
    for a, b in zip(whole, cut, strict=True):
        assert [r.tokens.tolist() for r in a] == [r.tokens.tolist() for r in b]


def test_the_first_token_can_be_refused() -> None:
    """Chi-square of 4,000 first tokens against the renormalised rest of the distribution."""
    policy, draws = tiny.policy(), 4000
    with torch.no_grad():
        logits = policy.model(torch.tensor([SEQUENCES[0][:3].tolist()])).logits[0, -1]
    likeliest = int(logits.argmax())
    start = ContinuationStart(0, 3, tuple(range(draws)), 2, excluded_token=likeliest)
    (drawn,) = sample_continuations(policy, SEQUENCES, [start], SampleConfig())
    counted = np.bincount([r.tokens[0] for r in drawn], minlength=tiny.VOCABULARY)
    assert counted[likeliest] == 0
    assert likeliest in {int(r.tokens[1]) for r in drawn if len(r.tokens) > 1}  # only the first
    logits[likeliest] = -torch.inf
    expected = draws * logits.softmax(-1).numpy()
    likely = expected > 5
    chi2 = float((((counted - expected) ** 2) / np.maximum(expected, 1e-9))[likely].sum())
    freedom = int(likely.sum())
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5
    assert drawn[0].logprobs[0] == pytest.approx(
        float(logits.log_softmax(-1)[drawn[0].tokens[0]]), abs=1e-5
    )


def test_refusing_is_a_matter_of_each_row() -> None:
    """A neighbour that refuses a token leaves the other rows alone."""
    policy = tiny.policy()
    free = ContinuationStart(0, 3, (1, 2, 3), 5)
    (alone,) = sample_continuations(policy, SEQUENCES, [free], SampleConfig())
    refusing = ContinuationStart(0, 3, (1, 2, 3), 5, excluded_token=int(alone[0].tokens[0]))
    together, other = sample_continuations(policy, SEQUENCES, [free, refusing], SampleConfig())
    assert [r.tokens.tolist() for r in together] == [r.tokens.tolist() for r in alone]
    assert all(r.tokens[0] != refusing.excluded_token for r in other)


def test_a_short_limit_beside_a_long_one_at_the_models_last_position() -> None:
    """The row of 12 + 1 tokens stays in the batch while its neighbour draws 12 more."""
    policy = tiny.policy(max_position_embeddings=13)
    starts = [ContinuationStart(2, 12, (4, 5), 1), ContinuationStart(1, 1, (7, 8, 9), 12)]
    drawn = sample_continuations(policy, SEQUENCES, starts, SampleConfig())
    apart = [
        sample_continuations(policy, SEQUENCES, [start], SampleConfig())[0] for start in starts
    ]
    for a, b in zip(drawn, apart, strict=True):
        assert [r.tokens.tolist() for r in a] == [r.tokens.tolist() for r in b]


def test_no_starts() -> None:
    assert sample_continuations(tiny.policy(), SEQUENCES, [], SampleConfig()) == []


@pytest.mark.parametrize(
    "start",
    [
        ContinuationStart(0, 0, (1,), 3),
        ContinuationStart(1, 3, (1,), 3),
        ContinuationStart(0, 2, (1,), 0),
    ],
)
def test_impossible_starts_are_refused(start: ContinuationStart) -> None:
    with pytest.raises(ValueError, match="start"):
        sample_continuations(tiny.policy(), SEQUENCES, [start], SampleConfig())
