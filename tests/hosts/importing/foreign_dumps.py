"""Tiny dumps in the formats of slime and miles, made by hand.

Four prompts with two samples each, G = 2; two optimizer steps of four samples on two data-parallel
ranks. test_real_writers.py compares them with the trainers' own writers where these are installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
# Of each rank, as build_dp_schedule returns them: positions in the rollout batch, micro-batches of
# the rank's own samples, and how many of these belong to each optimizer step.
PARTITIONS = [[0, 2, 3, 4, 7], [1, 5, 6]]
MICRO_BATCHES = [[[0], [1, 2], [3], [4]], [[0], [], [1], [2]]]
PER_STEP = [2, 2]
STEPS = [[0, 1, 2, 3], [4, 5, 6, 7]]


def sample_tokens(position: int) -> tuple[list[int], list[int]]:
    """(prompt, response) of a sample: prompts differ by group, responses in length."""
    return [5, 6 + position // 2], [20 + position] * (1 + position % 3)


def sample_record(position: int, rollout_id: int = 0, **changes: Any) -> dict[str, Any]:
    """What Sample.to_dict returns, in the fields that matter here: slime/utils/types.py at 624b824a
    and miles/utils/types.py at 31f1ca96."""
    prompt, response = sample_tokens(position)
    return {
        "group_index": 4 * rollout_id + position // 2,
        "index": 8 * rollout_id + position,
        "rollout_id": None,
        "prompt": f"How many, {position // 2}?",
        "tokens": prompt + response,
        "multimodal_inputs": None,
        "response": f"{position} pens",
        "response_length": len(response),
        "label": "3",
        "reward": REWARDS[position],
        "loss_mask": None,
        "weight_versions": [str(rollout_id)],
        "rollout_log_probs": [-0.5] * len(response),
        "remove_sample": False,
        "status": "truncated" if position == 5 else "completed",
        "metadata": {},
        "spec_info": {"spec_accept_token_num": 0},
    } | changes


def write_rollout_dump(folder: Path, rollout_id: int = 0, *, miles: bool = False) -> Path:
    """As save_debug_rollout_data writes it: slime/observability/rollout_data_utils.py at 624b824a,
    miles/ray/rollout/debug_data.py at 31f1ca96 (with `metadata`)."""
    samples = [sample_record(position, rollout_id) for position in range(8)]
    metadata = {"metadata": {}} if miles else {}
    file = folder / "rollout_data" / f"{rollout_id}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"rollout_id": rollout_id, **metadata, "samples": samples}, file)
    return file


def shard_columns(rank: int, rollout_id: int = 0) -> dict[str, Any]:
    """A rank's rollout_data when it is dumped: the columns of _split_train_data_by_dp
    (slime/ray/rollout.py at 624b824a), with those that the training actor adds."""
    partition = PARTITIONS[rank]
    responses = [sample_tokens(position)[1] for position in partition]
    advantages = [_advantage(position) for position in partition]
    return {
        "partition": partition,
        "tokens": [
            torch.tensor([*sample_tokens(position)[0], *sample_tokens(position)[1]])
            for position in partition
        ],
        "response_lengths": [len(response) for response in responses],
        "rewards": advantages,
        "truncated": [int(position == 5) for position in partition],
        "loss_masks": [torch.ones(len(r), dtype=torch.int32) for r in responses],
        "sample_indices": [8 * rollout_id + position for position in partition],
        "rollout_ids": [8 * rollout_id + position for position in partition],
        "rollout_mask_sums": [len(response) for response in responses],
        "rollout_log_probs": [torch.full((len(r),), -0.5) for r in responses],
        "raw_reward": REWARDS,
        "total_lengths": [2 + len(response) for response in responses],
        "global_batch_sizes": [4, 4],
        "num_microbatches": PER_STEP,
        "micro_batch_indices": MICRO_BATCHES[rank],
        "local_raw_reward": [REWARDS[position] for position in partition],
        "log_probs": [torch.full((len(r),), -0.4) for r in responses],
        "advantages": [
            torch.full((len(r),), a) for r, a in zip(responses, advantages, strict=True)
        ],
    }


def _advantage(position: int) -> float:
    """(r - mean) / (std + 1e-6) within the group of two."""
    rewards = np.array(REWARDS).reshape(4, 2)[position // 2]
    centred = rewards - rewards.mean()
    return float((centred / (rewards.std(ddof=1) + 1e-6))[position % 2])


def write_slime_dump(folder: Path, rollout_id: int = 0, **changes: Any) -> Path:
    """As save_debug_train_data writes it: _build_dump_payload of
    slime/observability/train_data_utils.py at 624b824a, line by line."""
    samples, layout, raw_reward = [], [], None
    for rank in range(2):
        columns = shard_columns(rank, rollout_id)
        ids = {"sample_indices": "sample_index", "partition": "rollout_position"}
        shard_layout: dict[str, Any] = {"rank": rank, "data_parallel_rank": rank}
        shard_layout |= {column: list(columns[column]) for column in ids}
        num_local = len(columns["response_lengths"])
        per_sample = {}
        for name, value in columns.items():
            if name in ids:
                continue
            if name == "raw_reward":
                raw_reward = value
            elif name in ("micro_batch_indices", "num_microbatches", "global_batch_sizes"):
                shard_layout[name] = value
            else:
                assert len(value) == num_local
                per_sample[name] = value
        for i in range(num_local):
            sample = {"data_parallel_rank": rank}
            sample |= {scalar: columns[column][i] for column, scalar in ids.items()}
            samples.append(sample | {name: column[i] for name, column in per_sample.items()})
        layout.append(shard_layout)
    samples.sort(key=lambda sample: sample["rollout_position"])
    payload = {
        "format_version": 2,
        "rollout_id": rollout_id,
        "rank": 0,
        "samples": samples,
        "dp_shards": layout,
        "raw_reward": raw_reward,
    }
    file = folder / "train_data" / f"{rollout_id}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(payload | changes, file)
    return file


def write_miles_dumps(
    folder: Path, rollout_id: int = 0, *, copies: int = 2, scheduled: bool = True
) -> list[Path]:
    """As save_debug_train_data_for_rank writes them for `copies` ranks of tensor parallelism:
    miles/utils/train_dump_utils.py at 31f1ca96, after process_rollout_data_shard, which drops
    `partition`. Numbers of samples may arrive as arrays (ROLLOUT_DATA_VALUE_SPEC)."""
    files = []
    for rank in range(2 * copies):
        columns = shard_columns(rank // copies, rollout_id)
        for name in ("partition", "local_raw_reward", "global_batch_sizes"):
            del columns[name]
        for name in ("response_lengths", "rewards", "sample_indices", "rollout_ids"):
            columns[name] = np.array(columns[name])
        if scheduled:
            columns["num_rollouts"] = [4, 4]
        else:
            del columns["micro_batch_indices"], columns["num_microbatches"]
        file = folder / "train_data" / f"{rollout_id}_{rank}.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            {
                "rollout_id": rollout_id,
                "rank": rank,
                "rollout_data": columns,
                "cp_rank": 0,
                "cp_size": 1,
                "qkv_format": "thd",
            },
            file,
        )
        files.append(file)
    return files
