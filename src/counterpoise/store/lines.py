"""A rollout as one line of JSON: the format that everything outside reads."""

from __future__ import annotations

import json

from counterpoise.types import Rollout

SCHEMA = 1


def rollout_line(rollout: Rollout, group: str) -> str:
    """One line of rollouts/step_00012.jsonl; log-probabilities to six digits."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "group": group,
            "prompt_id": rollout.prompt_id,
            "prompt": rollout.prompt,
            "response": rollout.response,
            "answer": rollout.answer,
            "reward": rollout.reward,
            "finished": rollout.finished,
            "prompt_tokens": rollout.prompt_tokens.tolist(),
            "response_tokens": rollout.response_tokens.tolist(),
            "sampled_logprobs": [round(float(x), 6) for x in rollout.sampled_logprobs],
        },
        ensure_ascii=False,
    )
