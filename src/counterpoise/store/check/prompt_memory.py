"""Check the prompt memory: its lines agree with rollouts/, its checkpoints with its lines.

memory.jsonl    the prompts of the iteration's rollouts, with as many right ones; a line for
                every iteration of a run that chooses prompts by memory
state.json      what the lines up to the checkpoint's iteration add up to, and the last line's
                position in the shuffled epochs
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.store import checkpoint
from counterpoise.store.check.findings import CheckReport
from counterpoise.store.check.log_lines import LogLine
from counterpoise.store.folder import CHECKPOINTS

MEMORY_FILE = "memory.jsonl"


def find_rollout_disagreement(
    record: Mapping[str, Any], rewards_by_group: Mapping[str, Sequence[float]]
) -> str:
    """What a line of memory.jsonl says otherwise than rollouts/; "" if nothing.

    `rewards_by_group` holds the rewards of an iteration by group, without anchors.
    """
    expected = {}
    for group, rewards in rewards_by_group.items():
        scored_rewards = [reward for reward in rewards if not math.isnan(reward)]
        expected[group.partition(":")[2]] = [
            sum(reward > 0 for reward in scored_rewards),
            len(scored_rewards),
        ]
    stored_visits = {prompt_id: visit[:2] for prompt_id, visit in record["prompts"].items()}
    for prompt_id in stored_visits.keys() | expected.keys():
        if stored_visits.get(prompt_id) != expected.get(prompt_id):
            return (
                f"says {_describe_counts(stored_visits.get(prompt_id))} for {prompt_id}, "
                f"rollouts/ has {_describe_counts(expected.get(prompt_id))}"
            )
    return ""


def _describe_counts(counts: Sequence[int] | None) -> str:
    return "no rollouts" if counts is None else f"{counts[0]} right of {counts[1]} scored rollouts"


def check_memory_checkpoints(
    run: Path,
    config: RunConfig | None,
    lines: Sequence[LogLine],
    gaps: Sequence[LogLine],
    report: CheckReport,
) -> None:
    """Every intact checkpoint must hold what the lines before it add up to."""
    has_lost_lines = any(MEMORY_FILE in line.record["missing"] for line in gaps)
    if config is None or not config.has_prompt_memory or has_lost_lines:
        return
    for iteration in report.intact_checkpoints:
        name = f"{CHECKPOINTS}/{checkpoint.folder_name(iteration)}"
        state = json.loads((run / name / "state.json").read_text(encoding="utf-8"))
        records = [line.record for line in lines if line.record["iteration"] <= iteration]
        if state.get("memory") != add_up(records):
            report.add(name, f"has another prompt memory than {MEMORY_FILE}", iteration)


def add_up(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The memory after these lines, as a checkpoint stores it."""
    visits: dict[str, list[list[int]]] = {}
    for record in records:
        for prompt_id, visit in record["prompts"].items():
            visits.setdefault(prompt_id, []).append([record["iteration"], *visit])
    position = records[-1]["next_position"] if records else 0
    influence: dict[str, float] = {}
    for record in records:
        influence.update(record.get("influence", {}))
    return {
        "next_position": position,
        "visits": visits,
        **({"influence": influence} if influence else {}),
    }
