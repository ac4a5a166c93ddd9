"""Access a batch's content in verl's TransferQueue: fields by key, ragged over tokens.

key   "uid_session_output": the group, the rollout in it, and which of its outputs (always 0 unless
      an agent returns several)
tag   small facts about a row: its lengths, whether it is padding
"""

from __future__ import annotations

from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from counterpoise.hosts.verl.row_keys import group_of_key, trajectories_of_keys
from counterpoise.types import Floats, Row


def get_fields(batch: KVBatchMeta, *fields: str) -> TensorDict:
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )


def put_fields(batch: KVBatchMeta, fields: TensorDict) -> None:
    written = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
    # Workers get the fields that the batch lists, if it lists any: new ones have to be among them.
    if batch.fields is not None:
        batch.fields = written.fields


def clear_keys(batch: KVBatchMeta, keys: list[str]) -> None:
    if keys:
        tq.kv_clear(keys=keys, partition_id=batch.partition_id)


def is_real_row(tag: dict[str, Any]) -> bool:
    """False for verl's padding rows, which are not trained on."""
    return not tag.get("is_padding", False)


def composer_rows(batch: KVBatchMeta, data: TensorDict) -> list[Row]:
    """The batch as composers see it, without padding; advantages are means over trained tokens."""
    columns = zip(
        batch.keys,
        batch.tags,
        trajectories_of_keys(batch.keys, batch.tags),
        data["advantages"].unbind(),
        data["response_mask"].unbind(),
        strict=True,
    )
    rows = []
    for key, tag, trajectory, advantages_T, mask_T in columns:
        if is_real_row(tag):
            trained_T = advantages_T[mask_T.bool()]
            advantage = float(trained_T.mean()) if len(trained_T) else 0.0
            group = group_of_key(key)
            rows.append(Row(group, advantage, len(trained_T), trajectory=trajectory))
    return rows


def trained_values(column: torch.Tensor, mask_RT: torch.Tensor) -> list[Floats]:
    """A ragged field as one array for each row, of its trained tokens."""
    return [
        values_T[mask_T.bool()].float().numpy()
        for values_T, mask_T in zip(column.unbind(), mask_RT.unbind(), strict=True)
    ]
