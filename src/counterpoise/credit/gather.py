"""Prompts, responses and rewards -> groups of rollouts, which credit is computed over."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.types import Group, Ints, Prompt, Response, Rollout


def gather(
    prompts: Sequence[tuple[Prompt, Ints]],
    responses_PG: Sequence[Sequence[Response]],
    rewards: Sequence[float],
    now: int,
) -> list[Group]:
    """Rewards come prompt after prompt, in the order of the responses."""
    remaining = iter(rewards)
    return [
        Group(
            key=f"{now}:{prompt.id}",
            iteration=now,
            rollouts=tuple(
                Rollout(
                    prompt_id=prompt.id,
                    prompt=prompt.problem,
                    answer=prompt.answer,
                    response=response.text,
                    reward=next(remaining),
                    prompt_tokens=tokens,
                    response_tokens=response.tokens,
                    sampled_logprobs=response.logprobs,
                    finished=response.finished,
                )
                for response in responses
            ),
        )
        for (prompt, tokens), responses in zip(prompts, responses_PG, strict=True)
    ]
