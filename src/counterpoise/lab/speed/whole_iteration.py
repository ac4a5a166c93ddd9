"""Time a whole GRPO iteration of TRL's GRPOTrainer and of ours, in turns on one device.

Ours is `loop.iterate` as `poise train` calls it: rollouts, token table and plans are written to a
run folder. Both sample exactly the same number of tokens for the same prompts, give half of every
group a reward of 1, and take one optimizer step. Further rows show ours with four steps, with the
monitor, and with the sampler's log-probabilities as the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from counterpoise.config import MonitorConfig
from counterpoise.lab.speed import trl_peer, workload
from counterpoise.lab.speed.clock import PeakMemory, release
from counterpoise.lab.speed.floors import sampling_floor, sizes_of, update_cost, update_floor
from counterpoise.lab.speed.iteration import IterationTimings, TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import Bar, MeasurementTable, format_gigabytes, format_seconds
from counterpoise.model.load import Policy

FASTER_BAR = 8.0
VARIANTS: dict[str, dict[str, Any]] = {
    "ours, monitor on": {"monitor": MonitorConfig()},
    "ours, old log-probabilities by the sampler": {"old_logprobs": "sampler"},
    "ours, 4 steps": {"steps": 4},
    "ours, 4 steps, old by the sampler": {"steps": 4, "old_logprobs": "sampler"},
}


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One iteration of ours, for `--profile`."""
    iteration = setup.plan.iteration
    return TimedEngine(
        workload.load_endless_policy(iteration.model),
        workload.run_config(iteration, **setup.update_options),
        folder / "peer",
    )


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Time both engines, the variants of ours, and the floor of an iteration."""
    iteration = setup.plan.iteration
    with temporary_run_folders() as folder:
        policy, our_timings, peer_timings = _time_both_engines(setup, folder)
        variant_timings = _time_variants(setup, policy, folder)
    floor = _iteration_floor(setup, policy)
    timings = {"ours": our_timings, **variant_timings, **peer_timings}
    rows = [
        [name, *_cells(timing, our_timings, name in peer_timings)]
        for name, timing in timings.items()
    ]
    if not peer_timings:
        rows.append(["TRL", trl_peer.NOT_INSTALLED, *[""] * 5])
    return MeasurementTable(
        title=f"one GRPO iteration: {iteration.model}, {iteration} tokens, {setup.rates.dtype}",
        columns=("", "iteration", "spread", "ours is", "sampling", "update", "peak"),
        rows=rows,
        bars=_bars(setup, our_timings, peer_timings),
        notes=[
            f"floor of an iteration: {floor:.3f} s, sampling and one update",
            "ours by stage: "
            + ", ".join(
                f"{stage} {stage_seconds:.3f}"
                for stage, stage_seconds in our_timings.stages.items()
            )
            + " s",
        ],
        data={
            "peer": {"floor": floor, **{name: timing.data() for name, timing in timings.items()}}
        },
    )


def _time_both_engines(
    setup: SpeedSetup, folder: Path
) -> tuple[Policy, IterationTimings, dict[str, IterationTimings]]:
    """Timings of our engine and of TRL."""
    # Ours runs alone first, which gives its memory peak; then again between the steps of TRL, so
    # that both see the same state of the machine.
    plan, iteration = setup.plan, setup.plan.iteration
    with PeakMemory(setup.device) as peak:
        policy = workload.load_endless_policy(iteration.model)
        engine = TimedEngine(
            policy, workload.run_config(iteration, **setup.update_options), folder / "ours"
        )
        for _ in range(plan.warm_up):
            engine()
        engine.run_timed(plan.peer_repeats)
    setup.log(f"peer, ours: {engine.summarize(iteration).total.median:.3f} s per iteration")

    def between() -> None:
        release(setup.device)  # memory cached by one engine must not limit the other
        engine.run_timed(plan.peer_repeats)
        release(setup.device)

    peer_timings: dict[str, IterationTimings] = {}
    if trl_peer.trl_installed():
        half_repeats = plan.peer_repeats // 2
        peer_timings["TRL"] = trl_peer.train_with_trl(
            iteration,
            workload.load_endless_policy(iteration.model),
            repeats=plan.peer_repeats,
            warm_up=plan.warm_up,
            between=between,
            block=half_repeats,
        )
        release(setup.device)
        setup.log(f"peer, TRL: {peer_timings['TRL'].total.median:.3f} s per iteration")
        # Checkpointing is TRL's default: leaner, and slower. The memory bar uses the leaner one.
        if setup.cuda and not setup.deadline.passed:
            peer_timings["TRL, gradient checkpointing"] = trl_peer.train_with_trl(
                iteration,
                workload.load_endless_policy(iteration.model),
                repeats=half_repeats,
                warm_up=1,
                checkpointing=True,
            )
            release(setup.device)
    return policy, engine.summarize(iteration, peak), peer_timings


def _time_variants(setup: SpeedSetup, policy: Policy, folder: Path) -> dict[str, IterationTimings]:
    timings = {}
    for number, (name, changes) in enumerate(VARIANTS.items()):
        config = workload.run_config(setup.plan.iteration, **changes, **setup.update_options)
        engine = TimedEngine(policy, config, folder / f"other-{number}")
        for _ in range(setup.plan.warm_up):
            engine()
        engine.run_timed(setup.plan.peer_repeats)
        timings[name] = engine.summarize(setup.plan.iteration)
        del engine
        release(setup.device)
    return timings


def _cells(timings: IterationTimings, our_timings: IterationTimings, is_peer: bool) -> list[str]:
    return [
        format_seconds(timings.total.median),
        f"{100 * timings.total.spread:.0f} %",
        f"{timings.total.median / our_timings.total.median:.1f}x faster" if is_peer else "",
        format_seconds(timings.sampling.median),
        format_seconds(timings.update.median),
        format_gigabytes(timings.reserved),
    ]


def _bars(
    setup: SpeedSetup, our_timings: IterationTimings, peer_timings: Mapping[str, IterationTimings]
) -> list[Bar]:
    """Compare with the fastest and with the leanest variant of the peer."""
    if not peer_timings or not setup.cuda:
        return []
    fastest = min(timings.total.median for timings in peer_timings.values())
    leanest = min(timings.reserved for timings in peer_timings.values())
    return [
        Bar(
            "iteration, times TRL's speed",
            fastest / our_timings.total.median,
            FASTER_BAR,
            "x",
            True,
        ),
        Bar("peak memory, TRL's being the limit", our_timings.reserved / 1e9, leanest / 1e9, "GB"),
    ]


def _iteration_floor(setup: SpeedSetup, policy: Policy) -> float:
    iteration, sizes = setup.plan.iteration, sizes_of(policy)
    texts = workload.make_texts(policy.tokenizer, iteration.prompts)
    prompts_P = [len(tokens) for tokens in workload.encode_texts(policy.tokenizer, texts)]
    cost, _ = update_cost(
        sizes, [(S, [iteration.length] * iteration.group_size) for S in prompts_P]
    )
    sampling_seconds = sampling_floor(
        sizes, prompts_P, iteration.group_size, iteration.length, setup.rates
    )
    return sampling_seconds + update_floor(cost, setup.rates)
