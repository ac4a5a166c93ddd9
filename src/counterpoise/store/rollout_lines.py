"""Rollouts as JSON lines, the format that other tools read.

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

from counterpoise.store.plain_values import LONE_SURROGATE, to_plain_value
from counterpoise.store.turns import messages_to_records, turns_to_records
from counterpoise.types import Group, Rollout

SCHEMA = 1
# json.dumps would create an encoder for every line.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def rollout_lines(groups: Sequence[Group]) -> list[str]:
    """The lines of rollouts/step_00012.jsonl; log-probabilities to six digits."""
    keyed_rollouts = [(group.key, rollout) for group in groups for rollout in group.rollouts]
    prompt_texts = _numbers_to_text([rollout.prompt_tokens for _, rollout in keyed_rollouts])
    response_texts = _numbers_to_text([rollout.response_tokens for _, rollout in keyed_rollouts])
    logprob_texts = _numbers_to_text([rollout.sampled_logprobs for _, rollout in keyed_rollouts])
    return [
        f'{_encode_fields(rollout, group_key)}, "prompt_tokens": [{prompt_text}], '
        f'"response_tokens": [{response_text}], "sampled_logprobs": [{logprob_text}]}}'
        for (group_key, rollout), prompt_text, response_text, logprob_text in zip(
            keyed_rollouts, prompt_texts, response_texts, logprob_texts, strict=True
        )
    ]


def _encode_fields(rollout: Rollout, group: str) -> str:
    """The line before its lists of numbers, without the closing brace."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "group": group,
        "prompt_id": rollout.prompt_id,
        "prompt": rollout.prompt,
        "response": rollout.response,
        "answer": rollout.answer,
        "reward": rollout.reward,
    }
    if rollout.finished is not None:
        record["finished"] = rollout.finished
    if rollout.extra_rewards:
        record["further"] = dict(rollout.extra_rewards)
    if rollout.logged:
        record["logged"] = {name: to_plain_value(value) for name, value in rollout.logged.items()}
    if rollout.anchor:
        record["anchor"] = True
    if rollout.generic_logprob is not None:
        record["generic_logprob"] = round(rollout.generic_logprob, 6)
    if rollout.turns:
        record["turns"] = turns_to_records(rollout.turns)
    if rollout.messages:
        record["messages"] = messages_to_records(rollout.messages)
    if rollout.first_message:
        record["first_message"] = rollout.first_message
    return _encode(record)[:-1]


def encode_lines(json_lines: Sequence[str]) -> bytes:
    r"""A file of JSON lines in UTF-8; halves of surrogate pairs, which UTF-8 lacks, as escapes.

    Example:
        >>> encode_lines(['"a\ud800"'])
        b'"a\\ud800"\n'
    """
    file_text = "\n".join([*json_lines, ""])
    try:
        return file_text.encode()
    except UnicodeEncodeError:  # rare, and looking for them beforehand would take longer
        return LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", file_text).encode()


def _numbers_to_text(number_lists: Sequence[np.ndarray]) -> list[str]:
    """Each list of numbers as JSON, without its brackets; fractions to six digits."""
    if not number_lists:
        return []
    flat_numbers = np.concatenate(number_lists)
    if flat_numbers.dtype.kind == "f":
        flat_numbers = np.round(flat_numbers.astype(np.float64), 6)
    list_offsets = np.cumsum([0, *(len(numbers) for numbers in number_lists)])
    # JSON and Arrow spell nan and infinity differently.
    if not np.isfinite(flat_numbers).all():
        return [
            json.dumps(numbers.tolist())[1:-1]
            for numbers in np.split(flat_numbers, list_offsets[1:-1])
        ]
    number_texts = pa.ListArray.from_arrays(
        list_offsets.astype(np.int32), pa.array(flat_numbers).cast(pa.string())
    )
    joined_texts: list[str] = pc.binary_join(number_texts, ", ").to_pylist()
    return joined_texts
