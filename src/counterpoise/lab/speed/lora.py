"""Time an iteration that trains a LoRA adapter, ours and TRL's with PEFT, and its memory peak.

Both engines train the same adapter: rank RANK on every linear layer but the output layer, the base
model in bfloat16 and frozen. They take turns at one size; at a larger one ours runs alone and once,
for its memory peak.
"""

from __future__ import annotations

from pathlib import Path

from counterpoise.lab.speed import trl_peer, workload
from counterpoise.lab.speed.clock import PeakMemory, release
from counterpoise.lab.speed.iteration import IterationTimings, TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import MeasurementTable, format_gigabytes, format_seconds
from counterpoise.lab.speed.workload import Workload

RANK = 16


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Time both engines in turns, then one large iteration of ours."""
    iteration, large_iteration = setup.plan.lora_iteration, setup.plan.lora_peak
    with temporary_run_folders() as folder:
        timings = _time_both_engines(setup, folder)
        release(setup.device)
        timings[f"ours, {large_iteration}"] = _time_once(setup, large_iteration, folder / "large")
    ours = timings["ours"].total.median
    rows = [
        [
            name,
            format_seconds(timing.total.median),
            f"{timing.total.median / ours:.1f}x faster" if name.startswith("TRL") else "",
            format_seconds(timing.sampling.median),
            format_seconds(timing.update.median),
            format_gigabytes(timing.reserved),
        ]
        for name, timing in timings.items()
    ]
    if not trl_peer.trl_installed():
        rows.append(["TRL", trl_peer.NOT_INSTALLED, *[""] * 4])
    return MeasurementTable(
        title=f"one iteration with LoRA of rank {RANK}: {iteration.model}, {iteration} tokens",
        columns=("", "iteration", "ours is", "sampling", "update", "peak"),
        rows=rows,
        data={"lora": {name: timing.data() for name, timing in timings.items()}},
    )


def _time_both_engines(setup: SpeedSetup, folder: Path) -> dict[str, IterationTimings]:
    """Ours alone, which gives its memory peak, then again between the steps of TRL."""
    plan, iteration = setup.plan, setup.plan.lora_iteration
    with PeakMemory(setup.device) as peak:
        engine = _engine(setup, iteration, folder / "ours")
        engine()  # warms up: compiles kernels and captures graphs
        engine.run_timed(plan.lora_repeats)
    setup.log(f"lora, ours: {engine.summarize(iteration).total.median:.3f} s per iteration")
    timings: dict[str, IterationTimings] = {}
    if trl_peer.trl_installed():
        timings["TRL with PEFT"] = trl_peer.train_with_trl(
            iteration,
            workload.load_endless_policy(iteration.model, RANK),
            repeats=plan.lora_repeats,
            warm_up=1,
            block=1,
            between=engine.run_timed,
        )
        release(setup.device)
    return {"ours": engine.summarize(iteration, peak), **timings}


def _time_once(setup: SpeedSetup, large_iteration: Workload, path: Path) -> IterationTimings:
    """One iteration without a warm-up: what matters here is its memory."""
    with PeakMemory(setup.device) as peak:
        engine = _engine(setup, large_iteration, path)
        engine.run_timed()
    return engine.summarize(large_iteration, peak)


def _engine(setup: SpeedSetup, size: Workload, path: Path) -> TimedEngine:
    policy = workload.load_endless_policy(size.model, RANK)
    config = workload.run_config(size, lora_rank=RANK, **setup.update_options)
    return TimedEngine(policy, config, path)
