"""Time a whole GRPO iteration of TRL's GRPOTrainer and of ours, in turns on one device.

Ours is `loop.iterate` as `poise train` calls it: rollouts, token table and plans are written to a
run folder. Both sample exactly the same number of tokens for the same prompts, give half of every
group a reward of 1, and take one optimizer step. TRL samples with transformers (`--peers trl`) or
with vLLM (`--peers trl-vllm`); each of them takes turns with ours.

Further rows show ours with four steps, with the monitor, and with the sampler's log-probabilities
as the old ones. Each of these takes turns with ours again: what ran before in a process changes its
speed by some per cent, which is as much as a variant does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from counterpoise.config import MonitorConfig, SampleConfig
from counterpoise.hosts.trl import vllm_engine
from counterpoise.lab.speed import trl_peer, workload
from counterpoise.lab.speed.clock import PeakMemory, release
from counterpoise.lab.speed.floors import sampling_floor, sizes_of, update_cost, update_floor
from counterpoise.lab.speed.iteration import IterationTimings, TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import (
    LimitCheck,
    MeasurementTable,
    format_gigabytes,
    format_seconds,
)
from counterpoise.lab.speed.workload import Workload
from counterpoise.model.load import Policy

FASTER_LIMIT = 8.0
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
        policy, our_timings, peer_timings = _time_engines(setup, folder)
        variant_timings, variant_ratios = _time_variants(setup, policy, folder)
    floor = _iteration_floor(setup, policy)
    timings = {"ours": our_timings, **variant_timings, **peer_timings}
    ratios = variant_ratios | {
        name: timing.total.median / our_timings.total.median
        for name, timing in peer_timings.items()
    }
    rows = [
        [name, *_cells(timing, f"{ratios[name]:.2f}" if name in ratios else "")]
        for name, timing in timings.items()
    ]
    if not setup.peers and not peer_timings:
        rows.append(["TRL", trl_peer.NOT_INSTALLED, *[""] * 5])
    return MeasurementTable(
        title=f"one GRPO iteration: {iteration.model}, {iteration} tokens, {setup.rates.dtype}",
        columns=("", "iteration", "spread", "time / ours", "sampling", "update", "peak"),
        rows=rows,
        limit_checks=_limit_checks(setup, our_timings, peer_timings),
        notes=[
            f"floor of an iteration: {floor:.3f} s, sampling and one update",
            "ours by stage: "
            + ", ".join(
                f"{stage} {stage_seconds:.3f}"
                for stage, stage_seconds in our_timings.stages.items()
            )
            + " s",
            "time / ours: that of a variant over ours in the same turns",
        ],
        data={
            "peer": {
                "floor": floor,
                **{name: timing.data() for name, timing in timings.items()},
                "variant_ratios": variant_ratios,
            }
        },
    )


def _time_engines(
    setup: SpeedSetup, folder: Path
) -> tuple[Policy, IterationTimings, dict[str, IterationTimings]]:
    """Timings of our engine and of the peers."""
    # Ours runs alone first, which gives its memory peak; then again between the steps of each peer,
    # so that all see the same state of the machine.
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
    if "trl" in setup.peers or (not setup.peers and trl_peer.trl_installed()):
        peer_timings |= _time_trl(setup, between)
    if "trl-vllm" in setup.peers:
        peer_timings["TRL + vLLM"] = _time_trl_with_vllm(setup, between)
    return policy, engine.summarize(iteration, peak), peer_timings


def _time_trl(setup: SpeedSetup, between: Callable[[], None]) -> dict[str, IterationTimings]:
    """TRL with transformers, and on a GPU with gradient checkpointing too."""
    plan, iteration = setup.plan, setup.plan.iteration
    half_repeats = plan.peer_repeats // 2
    timings = {
        "TRL": trl_peer.train_with_trl(
            iteration,
            workload.load_endless_policy(iteration.model),
            repeats=plan.peer_repeats,
            warm_up=plan.warm_up,
            between=between,
            block=half_repeats,
        )
    }
    release(setup.device)
    setup.log(f"peer, TRL: {timings['TRL'].total.median:.3f} s per iteration")
    # Checkpointing is TRL's default: leaner, and slower. The memory limit is the leaner one's.
    if setup.cuda and not setup.deadline.passed:
        timings["TRL, gradient checkpointing"] = trl_peer.train_with_trl(
            iteration,
            workload.load_endless_policy(iteration.model),
            repeats=half_repeats,
            warm_up=1,
            checkpointing=True,
        )
        release(setup.device)
    return timings


def _time_trl_with_vllm(setup: SpeedSetup, between: Callable[[], None]) -> IterationTimings:
    plan, iteration = setup.plan, setup.plan.iteration
    policy = workload.load_endless_policy(iteration.model)
    with vllm_engine.saved_model(policy):
        timings = trl_peer.train_with_trl(
            iteration,
            policy,
            repeats=plan.peer_repeats,
            warm_up=plan.warm_up,
            between=between,
            block=plan.peer_repeats // 2,
            **_vllm_arguments(iteration),
        )
    release(setup.device)
    setup.log(f"peer, TRL + vLLM: {timings.total.median:.3f} s per iteration")
    return timings


def _vllm_arguments(iteration: Workload) -> dict[str, Any]:
    """Arguments of GRPOConfig that replace those of the transformers backend."""
    return {
        **vllm_engine.vllm_arguments(
            SampleConfig().engine_memory, workload.MAX_PROMPT_TOKENS + iteration.length
        ),
        # Every response has exactly its length, as on our side.
        "generation_kwargs": {"ignore_eos": True},
    }


def _time_variants(
    setup: SpeedSetup, policy: Policy, folder: Path
) -> tuple[dict[str, IterationTimings], dict[str, float]]:
    """Timings of the variants, and their seconds over those of ours in the same turns."""
    iteration, repeats = setup.plan.iteration, setup.plan.peer_repeats
    timings, ratios = {}, {}
    for number, (name, changes) in enumerate(VARIANTS.items()):
        engines = [
            TimedEngine(
                policy,
                workload.run_config(iteration, **options, **setup.update_options),
                folder / f"other-{number}-{engine_name}",
            )
            for engine_name, options in (("ours", {}), ("variant", changes))
        ]
        for engine in engines:
            for _ in range(setup.plan.warm_up):
                engine()
        for _ in range(2):
            for engine in engines:
                engine.run_timed(max(1, repeats // 2))
        plain, timings[name] = (engine.summarize(iteration) for engine in engines)
        ratios[name] = timings[name].total.median / plain.total.median
        del engine, engines
        release(setup.device)
    return timings, ratios


def _cells(timings: IterationTimings, ratio: str) -> list[str]:
    return [
        format_seconds(timings.total.median),
        f"{100 * timings.total.spread:.0f} %",
        ratio,
        format_seconds(timings.sampling.median),
        format_seconds(timings.update.median),
        format_gigabytes(timings.reserved),
    ]


def _limit_checks(
    setup: SpeedSetup, our_timings: IterationTimings, peer_timings: Mapping[str, IterationTimings]
) -> list[LimitCheck]:
    """Compare with the fastest and with the leanest variant of the peer."""
    if not peer_timings or not setup.cuda:
        return []
    fastest = min(timings.total.median for timings in peer_timings.values())
    leanest = min(timings.reserved for timings in peer_timings.values())
    return [
        LimitCheck(
            "iteration, times TRL's speed",
            fastest / our_timings.total.median,
            FASTER_LIMIT,
            "x",
            True,
        ),
        LimitCheck(
            "peak memory, TRL's being the limit", our_timings.reserved / 1e9, leanest / 1e9, "GB"
        ),
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
