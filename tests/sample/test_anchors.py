"""Anchors: drawn after the generic text, trained after the problem."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.sample.anchors import check_generic_texts
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.collect import SamplerBinding, draw_responses
from counterpoise.sample.native import sample
from counterpoise.seeds import seed_for
from counterpoise.task.word_problems import make_problem
from counterpoise.types import Prompt

CONFIG = RunConfig(sample=SampleConfig(prompts=2, group_size=4, anchors=1, max_new_tokens=12))


def test_the_last_of_a_group_answers_the_generic_text() -> None:
    policy = tiny.policy()
    prompts = [Prompt("a", "one two three", "1", generic="three"), Prompt("b", "x y", "2", "", "y")]
    encoded = [(prompt, policy.encode(prompt.problem)) for prompt in prompts]
    drawn = draw_responses(SamplerBinding(policy), encoded, CONFIG, iteration=3)
    for p, (prompt, tokens) in enumerate(encoded):
        seeds = [seed_for(0, "sample", 3, p * 4 + g) for g in range(4)]
        (informed,) = sample(policy, [tokens], [seeds[:3]], CONFIG.sample)
        (anchor,) = sample(policy, [policy.encode(prompt.generic)], [seeds[3:]], CONFIG.sample)
        expected = [response.tokens.tolist() for response in (*informed, *anchor)]
        assert [response.tokens.tolist() for response in drawn[p]] == expected


def test_an_anchor_is_a_response_to_the_problem_whose_probability_nobody_said() -> None:
    policy = tiny.policy()
    prompt = Prompt("a", "one two three", "1", generic="three")
    encoded = [(prompt, policy.encode(prompt.problem))]
    drawn = draw_responses(SamplerBinding(policy), encoded, CONFIG, iteration=1)
    (group,) = build_groups(encoded, drawn, [1.0, 0.0, 1.0, 0.0], 1, anchors=1)
    assert [rollout.anchor for rollout in group.rollouts] == [False, False, False, True]
    *others, anchor = group.rollouts
    assert anchor.prompt_tokens.tolist() == encoded[0][1].tolist()
    assert np.isnan(anchor.sampled_logprobs).all()
    assert len(anchor.sampled_logprobs) == len(anchor.response_tokens)
    assert all(np.isfinite(rollout.sampled_logprobs).all() for rollout in others)


def test_later_rounds_have_seeds_of_their_own() -> None:
    policy = tiny.policy()
    prompt = Prompt("a", "one two three", "1", generic="three")
    encoded = [(prompt, policy.encode(prompt.problem))]
    first, second = (
        draw_responses(SamplerBinding(policy), encoded, CONFIG, 1),
        draw_responses(SamplerBinding(policy), encoded, CONFIG, 1, prompts_before=1),
    )
    both = draw_responses(SamplerBinding(policy), encoded * 2, CONFIG, 1)
    for one, other in zip(first + second, both, strict=True):
        assert [r.tokens.tolist() for r in one] == [r.tokens.tolist() for r in other]


def test_word_problems_ask_the_question_without_the_story() -> None:
    prompt = make_problem("train", 3)
    assert prompt.generic.endswith("?")
    assert prompt.problem.endswith(f" {prompt.generic}")
    check_generic_texts([prompt], CONFIG.sample)


def test_a_task_without_generic_texts_is_refused() -> None:
    with pytest.raises(PoiseError, match=r"prompt 'a' has no generic text.*task\.generic_field"):
        check_generic_texts([Prompt("a", "?", "1")], CONFIG.sample)
    check_generic_texts([Prompt("a", "?", "1")], SampleConfig())
