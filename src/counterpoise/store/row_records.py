"""Rows as JSON values and tensors, for checkpoints without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.store.turns import (
    messages_from_record,
    messages_to_records,
    turns_from_record,
    turns_to_records,
)
from counterpoise.types import Rollout, Row

# "scored" holds the trainer's log-probabilities, "reference" the initial policy's, "weights" the
# token weights; a row may lack all three.
ARRAY_TYPES = {
    "prompt_tokens": np.int32,
    "response_tokens": np.int32,
    "sampled_logprobs": np.float32,
    "scored": np.float32,
    "weights": np.float32,
    "reference": np.float32,
}


def rows_to_tensors(rows: list[Row]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Rows as (records for JSON, flat tensors for safetensors), exact to the last bit.

    Left out, because no row that waits for a later batch needs them: `masked`, `kl_coefficient`,
    and of the rollout `generic_logprob`, `columns` and `logged`.
    """
    records: list[dict[str, Any]] = []
    arrays_by_name: dict[str, list[np.ndarray]] = {array_name: [] for array_name in ARRAY_TYPES}
    for row in rows:
        rollout = row.content
        arrays = {
            "prompt_tokens": rollout.prompt_tokens,
            "response_tokens": rollout.response_tokens,
            "sampled_logprobs": rollout.sampled_logprobs,
            "scored": row.trainer_logprobs_T,
            "weights": row.weights_T,
            "reference": row.reference_logprobs_T,
        }
        for array_name, array in arrays.items():
            if array is not None:
                arrays_by_name[array_name].append(np.asarray(array, dtype=ARRAY_TYPES[array_name]))
        records.append(
            {
                "group": row.group,
                "advantage": row.advantage,
                "index": row.index,
                "born": row.born,
                "trajectory": row.trajectory,
                "prompt_id": rollout.prompt_id,
                "prompt": rollout.prompt,
                "answer": rollout.answer,
                "response": rollout.response,
                "reward": rollout.reward,
                "finished": rollout.finished,
                "further": dict(rollout.extra_rewards),
                "anchor": rollout.anchor,
                "turns": turns_to_records(rollout.turns),
                "messages": messages_to_records(rollout.messages),
                "first_message": rollout.first_message,
                "lengths": {
                    array_name: None if array is None else len(array)
                    for array_name, array in arrays.items()
                },
            }
        )
    tensors = {
        array_name: torch.from_numpy(
            np.concatenate(arrays) if arrays else np.empty(0, ARRAY_TYPES[array_name])
        )
        for array_name, arrays in arrays_by_name.items()
    }
    return records, tensors


def rows_from_tensors(records: list[dict[str, Any]], tensors: dict[str, Tensor]) -> list[Row]:
    """The inverse of `rows_to_tensors`, but for the fields that it leaves out."""
    offsets = dict.fromkeys(ARRAY_TYPES, 0)
    rows = []
    for record in records:
        arrays: dict[str, Any] = {}
        for array_name, length in record["lengths"].items():
            if length is None:
                arrays[array_name] = None
                continue
            row_start = offsets[array_name]
            row_end = row_start + length
            arrays[array_name] = tensors[array_name][row_start:row_end].numpy().copy()
            offsets[array_name] = row_end
        rollout = Rollout(
            **{
                field: record[field]
                for field in ("prompt_id", "prompt", "answer", "response", "reward", "finished")
            },
            **{
                field: arrays[field]
                for field in ("prompt_tokens", "response_tokens", "sampled_logprobs")
            },
            # Checkpoints of older versions lack these five.
            extra_rewards=record.get("further", {}),
            anchor=record.get("anchor", False),
            turns=turns_from_record(record),
            messages=messages_from_record(record),
            first_message=record.get("first_message", ""),
        )
        rows.append(
            Row(
                **{field: record[field] for field in ("group", "advantage", "index", "born")},
                num_tokens=len(rollout.response_tokens),
                trajectory=record.get("trajectory", ""),  # older checkpoints lack it
                rollout=rollout,
                weights_T=arrays["weights"],
                trainer_logprobs_T=arrays["scored"],
                reference_logprobs_T=arrays.get("reference"),  # older checkpoints lack it
            )
        )
    return rows
