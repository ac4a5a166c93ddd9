"""Combine prompts, responses and rewards into the groups that credit is computed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterpoise.types import Floats, Group, Ints, Prompt, Response, Rollout


def build_groups(
    prompts: Sequence[tuple[Prompt, Ints]],
    responses_PG: Sequence[Sequence[Response]],
    rewards: Sequence[float],
    iteration: int,
    extra_rewards_PG: Sequence[Sequence[Mapping[str, float]]] | None = None,
    anchors: int = 0,
    logged: Sequence[Mapping[str, Any]] = (),
) -> list[Group]:
    """One group for each prompt.

    `rewards` is flat: prompt by prompt, in the order of the responses. So is `logged`, which holds
    what a reward function logged about each response; it may be empty. The last `anchors` responses
    of every prompt were sampled from its generic text (`sample/anchors.py`).
    """
    rewards_left = iter(rewards)
    logged_left = iter(logged or [{} for _ in rewards])
    if extra_rewards_PG is None:
        extra_rewards_PG = [[{}] * len(responses) for responses in responses_PG]
    return [
        Group(
            key=f"{iteration}:{prompt.id}",
            iteration=iteration,
            rollouts=tuple(
                Rollout(
                    prompt_id=prompt.id,
                    prompt=prompt.problem,
                    answer=prompt.answer,
                    response=response.text,
                    reward=next(rewards_left),
                    prompt_tokens=tokens
                    if response.prompt_tokens is None
                    else response.prompt_tokens,
                    response_tokens=response.tokens,
                    # An anchor was sampled from the generic text, so the sampler's
                    # log-probabilities are not those of the response to this prompt.
                    sampled_logprobs=_unknown_logprobs(response) if anchor else response.logprobs,
                    finished=response.finished,
                    extra_rewards=extra_rewards,
                    anchor=anchor,
                    generic_logprob=_mean_anchor_logprob(responses, anchors),
                    turns=response.turns,
                    columns=prompt.columns,
                    messages=prompt.messages,
                    logged=next(logged_left),
                    first_message=response.first_message,
                )
                for response, extra_rewards, anchor in zip(
                    responses, extra_rewards_G, _anchor_flags(anchors, len(responses)), strict=True
                )
            ),
        )
        for (prompt, tokens), responses, extra_rewards_G in zip(
            prompts, responses_PG, extra_rewards_PG, strict=True
        )
    ]


def _anchor_flags(num_anchors: int, group_size: int) -> list[bool]:
    """True for the last `num_anchors` members of a group."""
    return [i >= group_size - num_anchors for i in range(group_size)]


def _mean_anchor_logprob(responses: Sequence[Response], num_anchors: int) -> float | None:
    """Mean over the anchors of their mean log-probability; None without anchors."""
    anchors = responses[len(responses) - num_anchors :]
    means = [float(response.logprobs.mean(dtype=np.float64)) for response in anchors]
    return sum(means) / len(means) if means else None


def _unknown_logprobs(response: Response) -> Floats:
    return np.full(len(response.tokens), np.nan, dtype=np.float32)
