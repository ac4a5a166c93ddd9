"""Write what one iteration leaves in its run folder, for every training engine."""

from __future__ import annotations

from typing import Any

from counterpoise.config import StoreConfig
from counterpoise.run import metrics
from counterpoise.store.folder import RunFolder


def write_iteration(
    folder: RunFolder,
    iteration: metrics.IterationResult,
    record: dict[str, Any],
    store: StoreConfig,
) -> None:
    """Write rollouts, tokens and plan as `store` says, the drops, and the line of metrics.jsonl.

    That line comes last: an iteration that has it is complete.
    """
    number = iteration.number
    if store.rollouts:
        folder.write_rollouts(number, iteration.groups)
    if store.tokens and any(result.rows for result in iteration.results):
        folder.write_table("tokens", number, metrics.token_trace(iteration))
        if pushed := metrics.push_trace(iteration):
            folder.write_table("pushes", number, pushed)
    if iteration.plan and iteration.description:
        numbers = {k: v for k, v in iteration.description.items() if not isinstance(v, list)}
        short = {"iteration": number, "describe": numbers}  # without the rows and steps
        folder.append("plans", metrics.plan_record(iteration) if store.report else short)
    if iteration.drops:
        folder.append("drops", metrics.drop_record(iteration))
    folder.append("metrics", record)
