"""How an iteration grows: with rollouts, with the length of responses, with the model.

Each point is a fresh model and a real run folder, with one optimizer step. Points that come after
the time limit are skipped, and that is said; the dear ones can be asked for alone (`chosen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from counterpoise.errors import PoiseError, unknown
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import PeakMemory, release
from counterpoise.lab.speed.iteration import TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedPlan, SpeedSetup
from counterpoise.lab.speed.tables import MeasurementTable, format_gigabytes, format_seconds
from counterpoise.lab.speed.workload import Workload


def measure(setup: SpeedSetup) -> MeasurementTable:
    rows: list[list[str]] = []
    found: list[dict[str, Any]] = []
    skipped: list[str] = []
    failed: list[str] = []
    for job in select_points(setup.plan, setup.growth_points):
        release(setup.device)
        if setup.deadline.passed:
            skipped.append(f"{job.model} {job}")
            continue
        try:
            row, data = _point(setup, job)
        except (torch.OutOfMemoryError, PoiseError) as fault:
            failed.append(f"{job.model} {job}: {str(fault).splitlines()[0]}")
            continue
        rows.append(row)
        found.append(data)
        setup.log(f"growth, {job.model} {job}: {row[4]}")
    over = f"skipped, {setup.deadline.minutes} minutes are over: {', '.join(skipped)}"
    return MeasurementTable(
        title="growth of an iteration",
        columns=(
            "model", "rollouts", "tokens each", "peak", "iteration", "spread", "sampling", "update",
            "tokens/s", "ms a rollout",
        ),
        rows=rows,
        notes=[*failed, *([over] if skipped else [])],
        data={"growth": found, "skipped": skipped, "failed": failed},
    )  # fmt: skip


def select_points(plan: SpeedPlan, wanted: Sequence[str]) -> list[Workload]:
    """The points that are asked for, in that order; without a wish all of them.

    Example:
        chosen(plan, ["length=2048", "size"])      # one point of the one axis, all of the other
    """
    points: list[Workload] = []
    for text in wanted or plan.growth:
        axis, equals, value = text.partition("=")
        if axis not in plan.growth:
            raise unknown("axis of growth", axis, plan.growth)
        by_value = {_value(axis, job): job for job in plan.growth[axis]}
        if equals and value not in by_value:
            raise unknown(f"point of {axis}", value, by_value)
        points += [by_value[value]] if equals else by_value.values()
    return points


def _value(axis: str, job: Workload) -> str:
    values = {"rollouts": job.rollouts, "length": job.length, "size": job.model}
    return str(values[axis]).removeprefix("shape:")


def _point(setup: SpeedSetup, job: Workload) -> tuple[list[str], dict[str, Any]]:
    with PeakMemory(setup.device) as peak, temporary_run_folders() as folder:
        policy = workload.load_endless_policy(job.model)
        ours = TimedEngine(policy, workload.run_config(job, **setup.update_options), folder / "run")
        ours()
        ours.run_timed(setup.plan.growth_repeats)
    it = ours.summarize(job, peak)
    row = [
        job.model,
        f"{job.rollouts:,}",
        f"{job.length:,}",
        format_gigabytes(it.reserved),
        format_seconds(it.total.median),
        f"{100 * it.total.spread:.0f} %",
        format_seconds(it.sampling.median),
        format_seconds(it.update.median),
        f"{it.tokens / it.total.median:,.0f}",
        f"{1e3 * it.total.median / job.rollouts:.2f}",
    ]
    data = {"model": job.model, "rollouts": job.rollouts, "length": job.length}
    return row, data | it.data()
