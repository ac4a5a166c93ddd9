"""Tiny files in the formats of other trainers, made by hand.

Layouts as their writers leave them: trainer/grpo_trainer.py of TRL 1.16.0 (`log`),
trainer/ppo/v1/trainer_base.py of verl 0.9.1 (`_write_generations`, `_log_rollout_data`),
trainer/rl/token_export.py of prime-rl (`TokenExporter`) and infra/workflow_executor.py of AReaL at
cbff54d6 (`_dump_trajectory`). Where TRL, verl or AReaL is installed, test_real_writers.py has them
write the files themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TWO = ["How many?"] * 2 + ["How far?"] * 2


def advantages(rewards: Sequence[float], size: int = 2) -> list[float]:
    """(r - mean) / (std + 1e-4) in blocks, as TRL does it."""
    blocks = np.array(rewards, dtype=float).reshape(-1, size)
    centred = blocks - blocks.mean(1, keepdims=True)
    return (centred / (blocks.std(1, ddof=1, keepdims=True) + 1e-4)).ravel().tolist()


def trl_file(
    folder: Path,
    step: int = 1,
    prompts: Sequence[Any] = TWO,
    completions: Sequence[Any] = ("3", "4 pens", "5", ""),
    rewards: dict[str, Sequence[float]] | None = None,
    advantage: Sequence[float] | None = None,
    **extra: Sequence[Any],
) -> Path:
    rewards = rewards or {"correct": [1.0, 0.0, 0.0, 1.0]}
    totals = np.sum([np.nan_to_num(values) for values in rewards.values()], axis=0)
    columns = {
        "step": [step] * len(prompts),
        "prompt": list(prompts),
        "completion": list(completions),
        **{name: pa.array(values, pa.float64()) for name, values in rewards.items()},
        **extra,
        "advantage": list(advantage or advantages(totals)),
    }
    file = folder / "completions" / f"completions_{step:05d}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)
    return file


def verl_file(folder: Path, step: int = 1, *, uid: bool = True, **changes: Any) -> Path:
    """Two groups of two; with uids the second group has the first one's prompt."""
    lines = []
    for i in range(4):
        record = {
            "input": "How many?" if uid or i < 2 else "How far?",
            "output": f"{i} pens",
            "gts": "3",
            "score": float(i % 2),
            "step": step,
        }
        lines.append(record | ({"uid": f"a-{i // 2}_{i % 2}_0"} if uid else {}) | changes)
    return write_lines(folder / f"{step}.jsonl", lines)


def areal_record(
    task: int, row: int, version: int, reward: float, prompt: str = "How many?", **changes: Any
) -> dict[str, Any]:
    """A response of four tokens, of which the last two are by the folder's version."""
    head = max(version - 1, 0)
    return {
        "task_id": task,
        "sample_idx": row,
        "seqlen": 7,
        "prompt_len": 3,
        "head_version": head,
        "tail_version": version,
        "version_rle": [[head, 2], [version, 2]] if head < version else [[version, 4]],
        "reward": reward,
        "prompt": prompt,
        "completion": f"{row} pens<|end|>",
    } | changes


def areal_task(
    folder: Path, version: int = 1, task: int = 0, prompt: str = "How many?", **changes: Any
) -> Path:
    """A task of two samples, a wrong and a right one."""
    records = [areal_record(task, i, version, float(i), prompt, **changes) for i in range(2)]
    return write_lines(folder / "rollout" / str(version) / f"{task}.jsonl", records)


def areal_files(folder: Path) -> Path:
    areal_task(folder)
    return areal_task(folder, 1, 1, "How far?")


def prime_record(prompt: Sequence[int], response: Sequence[int], reward: float) -> dict[str, Any]:
    tokens, before = [*prompt, *response], len(prompt)
    count = len(tokens)
    return {
        "schema_version": 1,
        "step": 0,
        "export_step": 0,
        "rank": 0,
        "micro_step": 0,
        "micro_sequence_idx": 0,
        "export_sequence_idx": 0,
        "run_id": None,
        "env_name": "maths",
        "token_ids": tokens,
        "position_ids": list(range(count)),
        "loss_mask": [i >= before for i in range(count)],
        "advantages": [0.5] * count,
        "rewards": [reward] * count,
        "inference_logprobs": [0.0] * before + [-0.25] * len(response),
        "entropy": [0.1] * count,
    }


def write_lines(file: Path, records: Sequence[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
