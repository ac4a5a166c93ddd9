"""Encode rollouts as JSON lines, the format that other tools read.

The numbers of all rollouts are formatted in one call, because an iteration on a GPU has tens of
thousands of rollouts and `json.dumps` formats one number at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.store.turns import turns_to_records
from counterpoise.types import Group, Rollout

SCHEMA = 1
# json.dumps would create an encoder for every line.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def rollout_lines(groups: Sequence[Group]) -> list[str]:
    """The lines of rollouts/step_00012.jsonl; log-probabilities to six digits."""
    rollouts = [(group.key, rollout) for group in groups for rollout in group.rollouts]
    prompts = _numbers_to_text([rollout.prompt_tokens for _, rollout in rollouts])
    responses = _numbers_to_text([rollout.response_tokens for _, rollout in rollouts])
    logprobs = _numbers_to_text([rollout.sampled_logprobs for _, rollout in rollouts])
    return [
        f'{_encode_fields(rollout, key)}, "prompt_tokens": [{prompt}], '
        f'"response_tokens": [{response}], "sampled_logprobs": [{logprob}]}}'
        for (key, rollout), prompt, response, logprob in zip(
            rollouts, prompts, responses, logprobs, strict=True
        )
    ]


def _encode_fields(rollout: Rollout, group: str) -> str:
    """The line up to its lists, the closing brace left out."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "group": group,
        "prompt_id": rollout.prompt_id,
        "prompt": rollout.prompt,
        "response": rollout.response,
        "answer": rollout.answer,
        "reward": rollout.reward,
        "finished": rollout.finished,
    }
    if rollout.extra_rewards:
        record["further"] = dict(rollout.extra_rewards)
    if rollout.anchor:
        record["anchor"] = True
    if rollout.turns:
        record["turns"] = turns_to_records(rollout.turns)
    return _encode(record)[:-1]


def _numbers_to_text(lists: Sequence[np.ndarray]) -> list[str]:
    """Each list of numbers as JSON, without its brackets; fractions to six digits."""
    if not lists:
        return []
    flat = np.concatenate(lists)
    if flat.dtype.kind == "f":
        flat = np.round(flat.astype(np.float64), 6)
    ends = np.cumsum([0, *(len(values) for values in lists)])
    if not np.isfinite(flat).all():  # JSON and Arrow spell nan and infinity differently
        return [json.dumps(values.tolist())[1:-1] for values in np.split(flat, ends[1:-1])]
    numbers = pa.ListArray.from_arrays(ends.astype(np.int32), pa.array(flat).cast(pa.string()))
    texts: list[str] = pc.binary_join(numbers, ", ").to_pylist()
    return texts
