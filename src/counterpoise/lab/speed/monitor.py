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
from counterpoise.lab.speed.iteration import Ours, run_folders
from counterpoise.lab.speed.machine_sizes import Setup
from counterpoise.lab.speed.tables import Bar, Part, seconds

MONITOR_BAR = 20.0  # percent of an iteration
LOOKS = {"off": work.OFF, "default": MonitorConfig(), "all": MonitorConfig(tokens=0)}


def workload(setup: Setup, folder: Path) -> Callable[[], object]:
    """One iteration of ours with the monitor on: what `--profile` looks at."""
    one = setup.plan.peer
    config = work.run_config(one, monitor=LOOKS["default"], **setup.update)
    return Ours(work.load(one.model), config, folder / "monitor")


def measure(setup: Setup) -> Part:
    plan, one = setup.plan, setup.plan.peer
    policy = work.load(one.model)
    rows, bars, found = [], [], []
    with run_folders() as folder:
        for steps in (1, 4):
            sides = {
                name: Ours(
                    policy,
                    work.run_config(one, steps=steps, monitor=look, **setup.update),
                    folder / f"{steps}-{name}",
                )
                for name, look in LOOKS.items()
            }
            for turn in range(plan.warm_up + plan.peer_repeats):
                for side in sides.values():
                    side() if turn < plan.warm_up else side.timed()
            off = sides.pop("off").found(one)
            for name, side in sides.items():
                on, own = side.found(one), side.stage("monitor").median
                on_top = 100 * (on.whole.median / off.whole.median - 1)
                tokens = LOOKS[name].tokens or one.rollouts * one.length
                cells = [seconds(off.whole.median), seconds(on.whole.median), seconds(own)]
                share = f"{100 * own / on.whole.median:.1f} %"
                rows.append([f"{steps}", f"{tokens:,}", *cells, share, f"{on_top:.1f} %"])
                found.append({
                    "steps": steps, "looks": name, "off": off.data(), "on": on.data(),
                    "own_seconds": own,
                })  # fmt: skip
                if setup.cuda and name == "default":
                    bars.append(Bar(f"monitor on top, {steps} step(s)", on_top, MONITOR_BAR, "%"))
            del sides, side
            release(setup.device)
    return Part(
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
