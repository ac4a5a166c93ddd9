"""Rows as JSON values and tensors, for checkpoints without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.store.turns import turns_from_record, turns_to_records
from counterpoise.types import Rollout, Row

ARRAY_TYPES = {
    "prompt_tokens": np.int32,
    "response_tokens": np.int32,
    "sampled_logprobs": np.float32,
    "scored": np.float32,
    "weights": np.float32,
}


def rows_to_tensors(rows: list[Row]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Rows as (records for JSON, flat tensors for safetensors), reversible bit for bit."""
    records: list[dict[str, Any]] = []
    arrays_by_name: dict[str, list[np.ndarray]] = {name: [] for name in ARRAY_TYPES}
    for row in rows:
        content = row.content
        arrays = {
            "prompt_tokens": content.prompt_tokens,
            "response_tokens": content.response_tokens,
            "sampled_logprobs": content.sampled_logprobs,
            "scored": row.trainer_logprobs_T,
            "weights": row.weights_T,
        }
        for name, array in arrays.items():
            if array is not None:
                arrays_by_name[name].append(np.asarray(array, dtype=ARRAY_TYPES[name]))
        records.append(
            {
                "group": row.group,
                "advantage": row.advantage,
                "index": row.index,
                "born": row.born,
                "prompt_id": content.prompt_id,
                "prompt": content.prompt,
                "answer": content.answer,
                "response": content.response,
                "reward": content.reward,
                "finished": content.finished,
                "further": dict(content.extra_rewards),
                "anchor": content.anchor,
                "turns": turns_to_records(content.turns),
                "lengths": {name: None if a is None else len(a) for name, a in arrays.items()},
            }
        )
    tensors = {
        name: torch.from_numpy(np.concatenate(arrays) if arrays else np.empty(0, ARRAY_TYPES[name]))
        for name, arrays in arrays_by_name.items()
    }
    return records, tensors


def rows_from_tensors(plain: list[dict[str, Any]], tensors: dict[str, Tensor]) -> list[Row]:
    """The inverse of `rows_to_tensors`."""
    offsets = dict.fromkeys(ARRAY_TYPES, 0)
    rows = []
    for record in plain:
        arrays: dict[str, Any] = {}
        for name, length in record["lengths"].items():
            if length is None:
                arrays[name] = None
                continue
            arrays[name] = tensors[name][offsets[name] : offsets[name] + length].numpy().copy()
            offsets[name] += length
        rollout = Rollout(
            **{
                k: record[k]
                for k in ("prompt_id", "prompt", "answer", "response", "reward", "finished")
            },
            **{k: arrays[k] for k in ("prompt_tokens", "response_tokens", "sampled_logprobs")},
            # Checkpoints of older versions lack these three.
            extra_rewards=record.get("further", {}),
            anchor=record.get("anchor", False),
            turns=turns_from_record(record),
        )
        rows.append(
            Row(
                **{k: record[k] for k in ("group", "advantage", "index", "born")},
                num_tokens=len(rollout.response_tokens),
                rollout=rollout,
                weights_T=arrays["weights"],
                trainer_logprobs_T=arrays["scored"],
            )
        )
    return rows
