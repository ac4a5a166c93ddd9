"""The online monitor: iterations with it and without, in turns.

on top = on / off - 1         of the iteration without; what the bar is held against
share  = the monitor's own clock / on

It looks at as many tokens of an iteration as it does by default, which the bar is for, or at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from counterpoise.config import MonitorConfig
from counterpoise.lab.speed import workload as work
from counterpoise.lab.speed.clock import release
from counterpoise.lab.speed.iteration import TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import Bar, MeasurementTable, format_seconds

MONITOR_BAR = 20.0  # percent of an iteration
MONITORS = {"off": work.MONITOR_OFF, "default": MonitorConfig(), "all": MonitorConfig(tokens=0)}


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One iteration of ours with the monitor on: what `--profile` looks at."""
    one = setup.plan.iteration
    config = work.run_config(one, monitor=MONITORS["default"], **setup.update_options)
    return TimedEngine(work.load_endless_policy(one.model), config, folder / "monitor")


def measure(setup: SpeedSetup) -> MeasurementTable:
    plan, one = setup.plan, setup.plan.iteration
    policy = work.load_endless_policy(one.model)
    rows, bars, found = [], [], []
    with temporary_run_folders() as folder:
        for steps in (1, 4):
            sides = {
                name: TimedEngine(
                    policy,
                    work.run_config(one, steps=steps, monitor=look, **setup.update_options),
                    folder / f"{steps}-{name}",
                )
                for name, look in MONITORS.items()
            }
            for turn in range(plan.warm_up + plan.peer_repeats):
                for side in sides.values():
                    side() if turn < plan.warm_up else side.run_timed()
            off = sides.pop("off").summarize(one)
            for name, side in sides.items():
                on, own = side.summarize(one), side.stage_timing("monitor").median
                on_top = 100 * (on.total.median / off.total.median - 1)
                tokens = MONITORS[name].tokens or one.rollouts * one.length
                cells = [
                    format_seconds(off.total.median),
                    format_seconds(on.total.median),
                    format_seconds(own),
                ]
                share = f"{100 * own / on.total.median:.1f} %"
                rows.append([f"{steps}", f"{tokens:,}", *cells, share, f"{on_top:.1f} %"])
                found.append({
                    "steps": steps, "looks": name, "off": off.data(), "on": on.data(),
                    "own_seconds": own,
                })  # fmt: skip
                if setup.cuda and name == "default":
                    bars.append(Bar(f"monitor on top, {steps} step(s)", on_top, MONITOR_BAR, "%"))
            del sides, side
            release(setup.device)
    return MeasurementTable(
        title=f"the monitor in an iteration: {one.model}, {one} tokens",
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
        bars=bars,
        data={"monitor": found},
    )
