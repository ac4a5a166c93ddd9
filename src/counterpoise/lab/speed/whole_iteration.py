"""A whole iteration, sampling to new weights: TRL's GRPOTrainer and ours, in turns, on one device.

Ours is `loop.iterate` as `poise train` calls it: rollouts, token table and plans are written to a
run folder. Both draw exactly the same number of tokens for the same prompts, give half of every
group a reward of 1, and take one optimizer step; further rows show ours with four, with the
monitor, and with the sampler's log-probabilities as the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from counterpoise.config import MonitorConfig
from counterpoise.lab.speed import trl_peer
from counterpoise.lab.speed import workload as work
from counterpoise.lab.speed.clock import PeakMemory, release
from counterpoise.lab.speed.floors import sampling_floor, sizes_of, update_cost, update_floor
from counterpoise.lab.speed.iteration import IterationTimings, TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import Bar, MeasurementTable, format_gigabytes, format_seconds
from counterpoise.model.load import Policy

FASTER_BAR = 8.0
VARIANTS: dict[str, dict[str, Any]] = {
    "ours, monitor on": {"monitor": MonitorConfig()},
    "ours, old log-probabilities by the sampler": {"old": "sampler"},
    "ours, 4 steps": {"steps": 4},
    "ours, 4 steps, old by the sampler": {"steps": 4, "old": "sampler"},
}


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One iteration of ours: what `--profile` looks at."""
    one = setup.plan.iteration
    return TimedEngine(
        work.load_endless_policy(one.model),
        work.run_config(one, **setup.update_options),
        folder / "peer",
    )


def measure(setup: SpeedSetup) -> MeasurementTable:
    one = setup.plan.iteration
    with temporary_run_folders() as folder:
        policy, ours, theirs = _compared(setup, folder)
        others = _others(setup, policy, folder)
    floor = _floor(setup, policy)
    found = {"ours": ours, **others, **theirs}
    rows = [[name, *_cells(it, ours, name in theirs)] for name, it in found.items()]
    if not theirs:
        rows.append(["TRL", trl_peer.NOT_INSTALLED, *[""] * 5])
    return MeasurementTable(
        title=f"one GRPO iteration: {one.model}, {one} tokens, {setup.rates.dtype}",
        columns=("", "iteration", "spread", "ours is", "sampling", "update", "peak"),
        rows=rows,
        bars=_bars(setup, ours, theirs),
        notes=[
            f"floor of an iteration: {floor:.3f} s, sampling and one update",
            "ours by stage: " + ", ".join(f"{k} {v:.3f}" for k, v in ours.stages.items()) + " s",
        ],
        data={"peer": {"floor": floor, **{name: it.data() for name, it in found.items()}}},
    )


def _compared(
    setup: SpeedSetup, folder: Path
) -> tuple[Policy, IterationTimings, dict[str, IterationTimings]]:
    """Ours alone first, which gives its peak; then TRL, with ours again between its steps."""
    plan, one = setup.plan, setup.plan.iteration
    with PeakMemory(setup.device) as peak:
        policy = work.load_endless_policy(one.model)
        ours = TimedEngine(policy, work.run_config(one, **setup.update_options), folder / "ours")
        for _ in range(plan.warm_up):
            ours()
        ours.run_timed(plan.peer_repeats)
    setup.log(f"peer, ours: {ours.summarize(one).total.median:.3f} s an iteration")

    def between() -> None:
        release(setup.device)  # neither side finds the other's cached memory in its way
        ours.run_timed(plan.peer_repeats)
        release(setup.device)

    theirs: dict[str, IterationTimings] = {}
    if trl_peer.trl_installed():
        half = plan.peer_repeats // 2
        theirs["TRL"] = trl_peer.train_with_trl(
            one, work.load_endless_policy(one.model), repeats=plan.peer_repeats, warm_up=plan.warm_up,
            between=between, block=half,
        )  # fmt: skip
        release(setup.device)
        setup.log(f"peer, TRL: {theirs['TRL'].total.median:.3f} s an iteration")
        if setup.cuda and not setup.deadline.passed:
            theirs["TRL, gradient checkpointing"] = trl_peer.train_with_trl(
                one,
                work.load_endless_policy(one.model),
                repeats=half,
                warm_up=1,
                checkpointing=True,
            )
            release(setup.device)
    return policy, ours.summarize(one, peak), theirs


def _others(setup: SpeedSetup, policy: Policy, folder: Path) -> dict[str, IterationTimings]:
    found = {}
    for number, (name, changes) in enumerate(VARIANTS.items()):
        config = work.run_config(setup.plan.iteration, **changes, **setup.update_options)
        ours = TimedEngine(policy, config, folder / f"other-{number}")
        for _ in range(setup.plan.warm_up):
            ours()
        ours.run_timed(setup.plan.peer_repeats)
        found[name] = ours.summarize(setup.plan.iteration)
        del ours
        release(setup.device)
    return found


def _cells(found: IterationTimings, ours: IterationTimings, compare: bool) -> list[str]:
    return [
        format_seconds(found.total.median),
        f"{100 * found.total.spread:.0f} %",
        f"{found.total.median / ours.total.median:.1f}x faster" if compare else "",
        format_seconds(found.sampling.median),
        format_seconds(found.update.median),
        format_gigabytes(found.reserved),
    ]


def _bars(
    setup: SpeedSetup, ours: IterationTimings, theirs: Mapping[str, IterationTimings]
) -> list[Bar]:
    """Held against the fastest and the leanest of the peer's variants."""
    if not theirs or not setup.cuda:
        return []
    fastest = min(it.total.median for it in theirs.values())
    leanest = min(it.reserved for it in theirs.values())
    return [
        Bar("iteration, times TRL's speed", fastest / ours.total.median, FASTER_BAR, "x", True),
        Bar("peak memory, TRL's being the limit", ours.reserved / 1e9, leanest / 1e9, "GB"),
    ]


def _floor(setup: SpeedSetup, policy: Policy) -> float:
    one, sizes = setup.plan.iteration, sizes_of(policy)
    texts = work.make_texts(policy.tokenizer, one.prompts)
    prompts_P = [len(tokens) for tokens in work.encode_texts(policy.tokenizer, texts)]
    cost, _ = update_cost(sizes, [(S, [one.length] * one.group_size) for S in prompts_P])
    drawing = sampling_floor(sizes, prompts_P, one.group_size, one.length, setup.rates)
    return drawing + update_floor(cost, setup.rates)
