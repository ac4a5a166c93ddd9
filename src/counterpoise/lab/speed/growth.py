"""How an iteration grows: with rollouts, with the length of responses, with the model.

Each point is a fresh model and a real run folder, with one optimizer step. Points that come after
the time limit are skipped, with a note; expensive points can be requested alone (`select_points`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import PeakMemory, release
from counterpoise.lab.speed.iteration import TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedPlan, SpeedSetup
from counterpoise.lab.speed.tables import MeasurementTable, format_gigabytes, format_seconds
from counterpoise.lab.speed.workload import Workload


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Time an iteration at every requested point."""
    rows: list[list[str]] = []
    points: list[dict[str, Any]] = []
    skipped: list[str] = []
    failed: list[str] = []
    for workload_size in select_points(setup.plan, setup.growth_points):
        release(setup.device)  # the previous point may have failed half-way
        if setup.deadline.passed:
            skipped.append(f"{workload_size.model} {workload_size}")
            continue
        try:
            row, data = _measure_point(setup, workload_size)
        except (torch.OutOfMemoryError, PoiseError) as fault:  # the next point may be smaller
            failed.append(f"{workload_size.model} {workload_size}: {str(fault).splitlines()[0]}")
            continue
        rows.append(row)
        points.append(data)
        setup.log(f"growth, {workload_size.model} {workload_size}: {row[4]}")
    skipped_note = f"skipped, {setup.deadline.minutes} minutes are over: {', '.join(skipped)}"
    return MeasurementTable(
        title="growth of an iteration",
        columns=(
            "model", "rollouts", "tokens each", "peak", "iteration", "spread", "sampling", "update",
            "tokens/s", "ms a rollout",
        ),
        rows=rows,
        notes=[*failed, *([skipped_note] if skipped else [])],
        data={"growth": points, "skipped": skipped, "failed": failed},
    )  # fmt: skip


def select_points(plan: SpeedPlan, requested: Sequence[str]) -> list[Workload]:
    """The requested points in that order; all points if none is requested.

    Example:
        select_points(plan, ["length=2048", "size"])      # one point of length, all of size
    """
    points: list[Workload] = []
    for request in requested or plan.growth:
        axis, equals, value = request.partition("=")
        if axis not in plan.growth:
            raise unknown_name("axis of growth", axis, plan.growth)
        point_by_value = {
            _axis_value(axis, workload_size): workload_size for workload_size in plan.growth[axis]
        }
        if equals and value not in point_by_value:
            raise unknown_name(f"point of {axis}", value, point_by_value)
        points += [point_by_value[value]] if equals else point_by_value.values()
    return points


def _axis_value(axis: str, workload_size: Workload) -> str:
    values = {
        "rollouts": workload_size.rollouts,
        "length": workload_size.length,
        "size": workload_size.model,
    }
    return str(values[axis]).removeprefix("shape:")


def _measure_point(setup: SpeedSetup, workload_size: Workload) -> tuple[list[str], dict[str, Any]]:
    with PeakMemory(setup.device) as peak, temporary_run_folders() as folder:
        policy = workload.load_endless_policy(workload_size.model)
        engine = TimedEngine(
            policy, workload.run_config(workload_size, **setup.update_options), folder / "run"
        )
        engine()  # warms up
        engine.run_timed(setup.plan.growth_repeats)
    timings = engine.summarize(workload_size, peak)
    row = [
        workload_size.model,
        f"{workload_size.rollouts:,}",
        f"{workload_size.length:,}",
        format_gigabytes(timings.reserved),
        format_seconds(timings.total.median),
        f"{100 * timings.total.spread:.0f} %",
        format_seconds(timings.sampling.median),
        format_seconds(timings.update.median),
        f"{timings.tokens / timings.total.median:,.0f}",
        f"{1e3 * timings.total.median / workload_size.rollouts:.2f}",
    ]
    data = {
        "model": workload_size.model,
        "rollouts": workload_size.rollouts,
        "length": workload_size.length,
    }
    return row, data | timings.data()
