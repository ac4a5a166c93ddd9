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
from counterpoise.lab.speed.clock import Peak, release
from counterpoise.lab.speed.iteration import Ours, run_folders
from counterpoise.lab.speed.machine_sizes import Plan, Setup
from counterpoise.lab.speed.tables import Part, gigabytes, seconds
from counterpoise.lab.speed.workload import Work


def measure(setup: Setup) -> Part:
    rows: list[list[str]] = []
    found: list[dict[str, Any]] = []
    skipped: list[str] = []
    failed: list[str] = []
    for job in chosen(setup.plan, setup.growth):
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
        setup.say(f"growth, {job.model} {job}: {row[4]}")
    over = f"skipped, {setup.deadline.minutes} minutes are over: {', '.join(skipped)}"
    return Part(
        title="growth of an iteration",
        columns=(
            "model", "rollouts", "tokens each", "peak", "iteration", "spread", "sampling", "update",
            "tokens/s", "ms a rollout",
        ),
        rows=rows,
        notes=[*failed, *([over] if skipped else [])],
        data={"growth": found, "skipped": skipped, "failed": failed},
    )  # fmt: skip


def chosen(plan: Plan, wanted: Sequence[str]) -> list[Work]:
    """The points that are asked for, in that order; without a wish all of them.

    Example:
        chosen(plan, ["length=2048", "size"])      # one point of the one axis, all of the other
    """
    points: list[Work] = []
    for text in wanted or plan.growth:
        axis, equals, value = text.partition("=")
        if axis not in plan.growth:
            raise unknown("axis of growth", axis, plan.growth)
        by_value = {_value(axis, job): job for job in plan.growth[axis]}
        if equals and value not in by_value:
            raise unknown(f"point of {axis}", value, by_value)
        points += [by_value[value]] if equals else by_value.values()
    return points


def _value(axis: str, job: Work) -> str:
    values = {"rollouts": job.rollouts, "length": job.length, "size": job.model}
    return str(values[axis]).removeprefix("shape:")


def _point(setup: Setup, job: Work) -> tuple[list[str], dict[str, Any]]:
    with Peak(setup.device) as peak, run_folders() as folder:
        policy = workload.load(job.model)
        ours = Ours(policy, workload.run_config(job, **setup.update), folder / "run")
        ours()
        ours.timed(setup.plan.growth_repeats)
    it = ours.found(job, peak)
    row = [
        job.model,
        f"{job.rollouts:,}",
        f"{job.length:,}",
        gigabytes(it.reserved),
        seconds(it.whole.median),
        f"{100 * it.whole.spread:.0f} %",
        seconds(it.sampling.median),
        seconds(it.update.median),
        f"{it.tokens / it.whole.median:,.0f}",
        f"{1e3 * it.whole.median / job.rollouts:.2f}",
    ]
    data = {"model": job.model, "rollouts": job.rollouts, "length": job.length}
    return row, data | it.data()
