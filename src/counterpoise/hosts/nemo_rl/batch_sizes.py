"""How many rows of a step shared an optimizer step, by the run's options.

    grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}
    policy: {train_global_batch_size: 512}

NeMo-RL cuts the rows of a step, in their order, into batches of `train_global_batch_size`. Its log
folder has the options only if W&B was on; every checkpoint has them as config.yaml, which may be
copied beside the logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CONFIG_PATTERNS = ("config.yaml", "wandb/wandb/*run-*/files/config.yaml")
LONGEST_CONFIG = 1 << 22  # in bytes; real ones have some kilobytes


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Rows of a step, and of an optimizer step.

    Example:
        BatchSizes(rows=512, batch=128)
    """

    rows: int
    batch: int


def find_batch_sizes(folder: Path) -> BatchSizes | None:
    """The sizes that all options found in a log folder agree on; None if there are none."""
    files = [file for pattern in CONFIG_PATTERNS for file in folder.glob(pattern)]
    sizes = {_read_sizes(file) for file in files} - {None}
    return sizes.pop() if len(sizes) == 1 else None


def _read_sizes(file: Path) -> BatchSizes | None:
    try:
        if file.stat().st_size > LONGEST_CONFIG:
            return None
        options = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    prompts = _option(options, "grpo", "num_prompts_per_step")
    generations = _option(options, "grpo", "num_generations_per_prompt")
    batch = _option(options, "policy", "train_global_batch_size")
    if not prompts or not generations or not batch or prompts * generations % batch:
        return None
    return BatchSizes(prompts * generations, batch)


def _option(options: Any, section: str, name: str) -> int | None:
    """A positive whole number; W&B puts each section below a key `value`."""
    values = options.get(section) if isinstance(options, Mapping) else None
    if isinstance(values, Mapping) and isinstance(values.get("value"), Mapping):
        values = values["value"]
    number = values.get(name) if isinstance(values, Mapping) else None
    return number if type(number) is int and number > 0 else None
