"""Tiny runs of tinker-cookbook, made by hand.

Layouts as rl/rollout_logging.py, stores/training_store.py and utils/ml_log.py of tinker-cookbook at
9dfcc3a2 leave them. Where it is installed, test_real_writers.py has it write the files itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hosts.importing.foreign import write_lines


def turn(sampled: int, read: int = 40, reward: float = 0.0, **metrics: float) -> dict[str, Any]:
    """A turn that reads `read` tokens and samples `sampled` ones."""
    return {
        "step_idx": 0,
        "ob_len": read,
        "ac_len": sampled,
        "reward": reward,
        "episode_done": True,
        "metrics": metrics,
        "logs": {},
    }


def summary_record(
    group: int,
    member: int,
    reward: float,
    *turns: dict[str, Any],
    iteration: int = 0,
    **changes: Any,
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "split": "train",
        "iteration": iteration,
        "group_idx": group,
        "traj_idx": member,
        "tags": ["math"],
        "sampling_client_step": iteration,
        "total_reward": reward,
        "final_reward": 0.0,
        "trajectory_metrics": {},
        "steps": list(turns) or [turn(10 * group + member + 1, reward=reward)],
        "final_ob_len": 0,
        **changes,
    }


def write_summaries(folder: Path, records: Sequence[Any], iteration: int = 0) -> Path:
    file = folder / f"iteration_{iteration:06d}" / "train_rollout_summaries.jsonl"
    return write_lines(file, records)


def write_config(folder: Path, **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    defaults = {
        "num_substeps": 1,
        "max_tokens": 64,
        "remove_constant_reward_groups": False,
        "stream_minibatch_config": None,
        "async_config": None,
        "kl_penalty_coef": 0.0,
    }
    file.write_text(json.dumps(defaults | options), encoding="utf-8")
    return file


def tinker_run(folder: Path, iterations: int = 1, groups: int = 2, size: int = 2) -> Path:
    """A run with its evaluation; in every group the first reward is 0, then they alternate."""
    for iteration in range(iterations):
        records = [
            summary_record(group, member, float(member % 2), iteration=iteration)
            for group in range(groups)
            for member in range(size)
        ]
        file = write_summaries(folder, records, iteration)
        evaluation = [record | {"split": "eval/gsm8k"} for record in records]
        write_lines(file.with_name("eval_gsm8k_rollout_summaries.jsonl"), evaluation)
    write_config(folder)
    return folder
