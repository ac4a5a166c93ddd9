"""Measure what the online monitor costs: iterations with and without it, in turns.

on top = on / off - 1         this must stay below a limit
share  = the monitor's own clock / on

The monitor measures its default number of tokens, to which the limit applies, or all tokens. Every
iteration waits until its own files are written, which a run on a GPU does beside the next one: what
the monitor adds to the files counts in full.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from counterpoise.config import MonitorConfig
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import release
from counterpoise.lab.speed.iteration import TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import LimitCheck, MeasurementTable, format_seconds

MONITOR_LIMIT = 20.0  # percent of an iteration
MONITORS = {"off": workload.MONITOR_OFF, "default": MonitorConfig(), "all": MonitorConfig(tokens=0)}


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One iteration of ours with the monitor on, for `--profile`."""
    iteration = setup.plan.iteration
    config = workload.run_config(iteration, monitor=MONITORS["default"], **setup.update_options)
    return TimedEngine(workload.load_endless_policy(iteration.model), config, folder / "monitor")


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Time iterations with the monitor off, at its default, and on all tokens."""
    plan, iteration = setup.plan, setup.plan.iteration
    policy = workload.load_endless_policy(iteration.model)
    rows, limit_checks, comparisons = [], [], []
    with temporary_run_folders() as folder:
        for steps in (1, 4):
            engines = {
                name: TimedEngine(
                    policy,
                    workload.run_config(
                        iteration, steps=steps, monitor=monitor, **setup.update_options
                    ),
                    folder / f"{steps}-{name}",
                )
                for name, monitor in MONITORS.items()
            }
            # In turns: drift of the machine then affects all variants alike.
            for turn in range(plan.warm_up + plan.peer_repeats):
                for engine in engines.values():
                    engine() if turn < plan.warm_up else engine.run_timed()
            off = engines.pop("off").summarize(iteration)
            for name, engine in engines.items():
                on = engine.summarize(iteration)
                monitor_seconds = engine.stage_timing("monitor").median
                on_top = 100 * (on.total.median / off.total.median - 1)
                tokens = MONITORS[name].tokens or iteration.rollouts * iteration.length
                cells = [
                    format_seconds(off.total.median),
                    format_seconds(on.total.median),
                    format_seconds(monitor_seconds),
                ]
                share = f"{100 * monitor_seconds / on.total.median:.1f} %"
                rows.append([f"{steps}", f"{tokens:,}", *cells, share, f"{on_top:.1f} %"])
                comparisons.append({
                    "steps": steps, "looks": name, "off": off.data(), "on": on.data(),
                    "own_seconds": monitor_seconds,
                })  # fmt: skip
                if setup.cuda and name == "default":
                    limit_checks.append(
                        LimitCheck(f"monitor on top, {steps} step(s)", on_top, MONITOR_LIMIT, "%")
                    )
            del engines, engine  # engines hold optimizer states: free them before the next ones
            release(setup.device)
    return MeasurementTable(
        title=f"the monitor in an iteration: {iteration.model}, {iteration} tokens",
        columns=(
            "optimizer steps",
            "tokens looked at",
            "off",
            "on",
            "monitor's clock",
            "share of on",
            "on top of off",
        ),
        rows=rows,
        limit_checks=limit_checks,
        data={"monitor": comparisons},
    )
