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
    """Write rollouts, tokens and plan if `store` asks for them; probes, drops, memory and metrics.

    The line of metrics.jsonl comes last: an iteration that has it is complete.
    """
    iteration_number = iteration.number
    if store.rollouts:
        folder.write_rollouts(iteration_number, iteration.groups)
    if store.tokens and any(result.rows for result in iteration.results):
        folder.write_table("tokens", iteration_number, metrics.token_trace(iteration))
        if push_table := metrics.push_trace(iteration):
            folder.write_table("pushes", iteration_number, push_table)
    if iteration.probes and iteration.probes.drawing:
        folder.append("probes", iteration.probes.drawing)
    for kind, table in metrics.probe_traces(iteration).items():
        folder.write_table(kind, iteration_number, table)
    if iteration.plan and iteration.description:
        plan_numbers = {
            field: value
            for field, value in iteration.description.items()
            if not isinstance(value, list)
        }
        # Only the report draws the rows and steps of a plan.
        short_record = {"iteration": iteration_number, "describe": plan_numbers}
        folder.append("plans", metrics.plan_record(iteration) if store.report else short_record)
    if iteration.drops:
        folder.append("drops", metrics.drop_record(iteration))
    if iteration.memory:
        folder.append("memory", {"iteration": iteration_number, **iteration.memory})
    folder.append("metrics", record)
