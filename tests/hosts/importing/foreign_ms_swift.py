"""A tiny completions.jsonl of ms-swift, made by hand.

Columns and their order as in swift/rlhf_trainers/grpo_trainer.py (`log`),
swift/megatron/trainers/{rollout_mixin,grpo_trainer}.py and swift/ray/megatron/base_trainer.py at
3602360a; test_real_writers.py has ms-swift write them where it is installed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hosts.importing.foreign import advantages, write_lines

TWO = ["<|user|>How many?<|bot|>"] * 2 + ["<|user|>How far?<|bot|>"] * 2


def completion_table(
    step: int = 1,
    prompts: Sequence[str] = TWO,
    completions: Sequence[str] = ("3", "4 pens", "5", ""),
    rewards: dict[str, Sequence[float]] | None = None,
    advantage: Sequence[float] | None = None,
    size: int = 2,
    **further: Sequence[Any],
) -> dict[str, Any]:
    """A line of the transformers trainer."""
    rewards = rewards or {"Accuracy": [1.0, 0.0, 0.0, 1.0]}
    totals = np.sum([np.nan_to_num(values) for values in rewards.values()], axis=0)
    return {
        "step": [str(step)] * len(prompts),
        "prompt": list(prompts),
        "completion": list(completions),
        **{name: list(values) for name, values in rewards.items()},
        "advantages": list(advantages(totals, size) if advantage is None else advantage),
        **further,
    }


def megatron_table(step: int, **changes: Any) -> dict[str, Any]:
    table = completion_table(step, **changes)
    return {"gen_step": [step] * len(table.pop("step")), **table}


def ray_rows(step: int, prompts: Sequence[str] = TWO) -> list[dict[str, Any]]:
    return [
        {"gen_step": step, "prompt": prompt, "completion": f"{i} {step}", "reward": float(i % 2)}
        for i, prompt in enumerate(prompts)
    ]


def ms_swift_file(
    folder: Path,
    tables: Sequence[dict[str, Any]] | None = None,
    options: dict[str, Any] | None = None,
    log: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """completions.jsonl with args.json and logging.jsonl beside it, if given."""
    file = write_lines(folder / "completions.jsonl", tables or [completion_table()])
    if options is not None:
        (folder / "args.json").write_text(json.dumps(options, indent=2))
    if log is not None:
        write_lines(folder / "logging.jsonl", log)
    return file


def log_line(step: int, name: str = "loss") -> dict[str, Any]:
    return {name: 0.5, "global_step/max_steps": f"{step}/100"}
