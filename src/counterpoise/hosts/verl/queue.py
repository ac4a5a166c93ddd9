"""What TransferQueue holds of a batch: fields by key, ragged over tokens.

key   "uid_session_output": the group, the rollout in it, and which of its outputs (0 but for
      agents that return several)
tag   small facts about a row: its lengths, whether it is a filler
"""

from __future__ import annotations

from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from counterpoise.types import Floats, Row


def get(batch: KVBatchMeta, *fields: str) -> TensorDict:
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )


def put(batch: KVBatchMeta, fields: TensorDict) -> None:
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


def clear(batch: KVBatchMeta, keys: list[str]) -> None:
    if keys:
        tq.kv_clear(keys=keys, partition_id=batch.partition_id)


def group(key: str) -> str:
    """
    Example:
        >>> group("5c1e-77_3_0")
        '5c1e-77'
    """
    return key.split("_")[0]


def is_row(tag: dict[str, Any]) -> bool:
    """False for verl's padding rows, which train nothing."""
    return not tag.get("is_padding", False)


def rows(batch: KVBatchMeta, data: TensorDict) -> list[Row]:
    """The batch as composers see it, without fillers: the mean advantage of its trained tokens."""
    columns = zip(
        batch.keys, batch.tags, data["advantages"].unbind(), data["response_mask"].unbind(),
        strict=True,
    )  # fmt: skip
    found = []
    for key, tag, advantages_T, mask_T in columns:
        if is_row(tag):
            trained_T = advantages_T[mask_T.bool()]
            advantage = float(trained_T.mean()) if len(trained_T) else 0.0
            found.append(Row(group(key), advantage, len(trained_T)))
    return found


def trained(column: torch.Tensor, mask_RT: torch.Tensor) -> list[Floats]:
    """A ragged field as arrays, by row, of the tokens that are trained."""
    return [
        values_T[mask_T.bool()].float().numpy()
        for values_T, mask_T in zip(column.unbind(), mask_RT.unbind(), strict=True)
    ]
