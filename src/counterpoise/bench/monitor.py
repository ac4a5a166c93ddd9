"""The online monitor: iterations with it and without, in turns.

on top = on / off - 1         of the iteration without; what the bar is held against
share  = the monitor's own clock / on
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from counterpoise.bench import work
from counterpoise.bench.clock import release
from counterpoise.bench.iteration import Ours, run_folders
from counterpoise.bench.setup import Setup
from counterpoise.bench.table import Bar, Part, seconds

MONITOR_BAR = 20.0  # percent of an iteration


def workload(setup: Setup, folder: Path) -> Callable[[], object]:
    """One iteration of ours with the monitor on: what `--profile` looks at."""
    one = setup.plan.peer
    config = work.run_config(one, monitor=True, **setup.update)
    return Ours(work.load(one.model), config, folder / "monitor")


def measure(setup: Setup) -> Part:
    plan, one = setup.plan, setup.plan.peer
    policy = work.load(one.model)
    rows, bars, found = [], [], []
    with run_folders() as folder:
        for steps in (1, 4):
            sides = [
                Ours(
                    policy,
                    work.run_config(one, steps=steps, monitor=on, **setup.update),
                    folder / f"{steps}-{on}",
                )
                for on in (False, True)
            ]
            for turn in range(plan.warm_up + plan.peer_repeats):
                for side in sides:
                    side() if turn < plan.warm_up else side.timed()
            off, on = (side.found(one) for side in sides)
            own = sides[1].stage("monitor").median
            on_top = 100 * (on.whole.median / off.whole.median - 1)
            share = 100 * own / on.whole.median
            cells = [seconds(off.whole.median), seconds(on.whole.median), seconds(own)]
            rows.append([f"{steps}", *cells, f"{share:.1f} %", f"{on_top:.1f} %"])
            found.append({"steps": steps, "off": off.data(), "on": on.data(), "own_seconds": own})
            if setup.cuda:
                bars.append(Bar(f"monitor on top, {steps} step(s)", on_top, MONITOR_BAR, "%"))
            del sides
            release(setup.device)
    return Part(
        title=f"the monitor in an iteration: {one.model}, {one} tokens",
        columns=("optimizer steps", "off", "on", "monitor's clock", "share of on", "on top of off"),
        rows=rows,
        bars=bars,
        data={"monitor": found},
    )
