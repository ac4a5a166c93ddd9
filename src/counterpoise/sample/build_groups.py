"""Prompts, responses and rewards -> groups of rollouts, which credit is computed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from counterpoise.types import Floats, Group, Ints, Prompt, Response, Rollout


def build_groups(
    prompts: Sequence[tuple[Prompt, Ints]],
    responses_PG: Sequence[Sequence[Response]],
    rewards: Sequence[float],
    iteration: int,
    extra_rewards_PG: Sequence[Sequence[Mapping[str, float]]] | None = None,
    anchors: int = 0,
) -> list[Group]:
    """Rewards come prompt after prompt, in the order of the responses; the last `anchors` of a
    prompt's responses were drawn after its generic text: what the sampler says of their tokens
    says nothing of them after the prompt.
    """
    remaining = iter(rewards)
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
                    reward=next(remaining),
                    prompt_tokens=tokens,
                    response_tokens=response.tokens,
                    sampled_logprobs=_unknown(response) if anchor else response.logprobs,
                    finished=response.finished,
                    further=further,
                    anchor=anchor,
                    turns=response.turns,
                    columns=prompt.columns,
                )
                for response, further, anchor in zip(
                    responses, further_G, _last(anchors, len(responses)), strict=True
                )
            ),
        )
        for (prompt, tokens), responses, further_G in zip(
            prompts, responses_PG, extra_rewards_PG, strict=True
        )
    ]


def _last(count: int, size: int) -> list[bool]:
    return [i >= size - count for i in range(size)]


def _unknown(response: Response) -> Floats:
    return np.full(len(response.tokens), np.nan, dtype=np.float32)
