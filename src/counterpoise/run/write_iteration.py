"""What one iteration leaves in its run folder, whichever engine made it."""

from __future__ import annotations

from typing import Any

from counterpoise.config import StoreConfig
from counterpoise.run import metrics
from counterpoise.store.folder import RunFolder


def write_iteration(
    folder: RunFolder, made: metrics.Iteration, record: dict[str, Any], store: StoreConfig
) -> None:
    """Rollouts, tokens and plan as `store` asks, and what was dropped; its line of metrics.jsonl
    comes last.
    """
    now = made.number
    if store.rollouts:
        folder.write_rollouts(now, made.groups)
    if store.tokens and any(result.rows for result in made.results):
        folder.write_table("tokens", now, metrics.token_trace(made))
        if pushed := metrics.push_trace(made):
            folder.write_table("pushes", now, pushed)
    if made.plan and made.description:
        numbers = {k: v for k, v in made.description.items() if not isinstance(v, list)}
        short = {"iteration": now, "describe": numbers}  # without the rows and steps
        folder.append("plans", metrics.plan_record(made) if store.report else short)
    if made.drops:
        folder.append("drops", metrics.drop_record(made))
    folder.append("metrics", record)
