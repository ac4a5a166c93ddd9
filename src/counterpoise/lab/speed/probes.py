"""Measure what following held-out answers costs, and check that it changes no weight.

Iterations with and without probes are timed in turns, with default options:

look     how much longer an iteration takes that reads the answers before and after its update and
         sums the pushes on them: median of differences from the iteration without probes beside it
refresh  the same for an iteration that draws new answers and then looks at them, minus a look
share    (look / look_every + refresh / refresh_every) / iteration without probes, at the cadence of
         the default options: computed from these parts, not timed as a whole

The online monitor is off in both, so that the iteration that probes are compared with is as short
as it can be. Every iteration waits until its own files are written.

Weights are compared in a short run of their own (`compare_weights`) with `update.repeatable`,
without which a GPU does not even repeat a run without probes bit for bit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise.config import MonitorConfig
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import Timing, release, time_in_turns
from counterpoise.lab.speed.iteration import (
    IterationTimings,
    TimedEngine,
    temporary_run_folders,
)
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import LimitCheck, MeasurementTable, format_seconds
from counterpoise.lab.speed.workload import Workload
from counterpoise.microscope.batch_tokens import policy_residuals
from counterpoise.microscope.heldout_pushes import HeldoutPushes
from counterpoise.microscope.probe_monitor import answer_sets
from counterpoise.model.scoring import TokenScores, score_tokens
from counterpoise.run.probes import measurement_interval, probe_costs
from counterpoise.types import Prompt

SHARE_CHECK = "time of probes at the default cadence, computed from the rows above"
WEIGHTS_CHECK = "weights with probes are those without, bit for bit (update.repeatable)"
TurnSeconds = dict[str, list[tuple[float, float]]]  # by kind: without and with probes
LOOKS_IN_CYCLE = 2  # of the timed iterations: one after a refresh, one without
COMPARED_ITERATIONS, COMPARED_ANSWERS = 4, 16  # of the runs whose weights are compared
# Each of these iterations looks at its probes, and the third draws new ones. So some looks begin
# with a reading of their own, and some with the last one of the look before.
COMPARED_OPTIONS = replace(
    workload.MONITOR_OFF, probe=COMPARED_ANSWERS, probe_every=1, probe_refresh=2
)


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often a run with default options looks at its probes and draws new ones."""

    look_every: int  # iterations
    refresh_every: int

    def seconds_per_iteration(self, look: float, refresh: float) -> float:
        return look / self.look_every + refresh / self.refresh_every


def default_cadence(device: torch.device, answers: int, rollouts: int) -> Cadence:
    """The cadence of so many answers in iterations of so many rollouts.

    New answers are drawn only in an iteration with a look, once the old ones are old enough.

    Example:
        >>> default_cadence(torch.device("cpu"), 256, 512)
        Cadence(look_every=3, refresh_every=21)
        >>> default_cadence(torch.device("cuda"), 256, 512)
        Cadence(look_every=9, refresh_every=27)
    """
    refresh = MonitorConfig().probe_refresh
    interval = measurement_interval(device, answers, rollouts, refresh)
    return Cadence(interval, math.ceil(refresh / interval) * interval)


def measured_options(answers: int, cadence: Cadence) -> MonitorConfig:
    """Options with which every second look comes after a refresh.

    Looks in consecutive iterations share a reading, which makes them cheaper: here every iteration
    looks only if it does so by default.
    """
    every = min(cadence.look_every, 2)
    return replace(
        workload.MONITOR_OFF,
        probe=answers,
        probe_every=every,
        probe_refresh=LOOKS_IN_CYCLE * every,
    )


def make_heldout(tokenizer: Any, training_prompts: int, num_problems: int) -> list[Prompt]:
    """Problems for a right and a wrong answer each, none of them among the training prompts."""
    texts = workload.make_texts(tokenizer, training_prompts + num_problems)[training_prompts:]
    return [Prompt(f"bench/heldout/{index}", text, "") for index, text in enumerate(texts)]


def make_engine(
    setup: SpeedSetup, size: Workload, monitor: MonitorConfig, folder: Path, **update: Any
) -> TimedEngine:
    """An engine with weights of its own."""
    policy = workload.load_endless_policy(size.model)
    config = workload.run_config(size, monitor=monitor, **{**setup.update_options, **update})
    heldout = make_heldout(policy.tokenizer, size.prompts, math.ceil(monitor.probe / 2))
    return TimedEngine(policy, config, folder, heldout)


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One iteration of ours that looks at its probes, for `--profile`."""
    monitor = replace(workload.MONITOR_OFF, probe=setup.plan.probe_answers, probe_every=1)
    return make_engine(setup, setup.plan.probes, monitor, folder / "probes")


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Time iterations without probes, with a look, and with a refresh and a look."""
    size, answers = setup.plan.probes, setup.plan.probe_answers
    with temporary_run_folders() as folder:
        comparison = compare_weights(setup, folder)
        release(setup.device)
        timings, look_parts = time_iterations(setup, folder)
    base = timings.without.total.median
    added = {kind: timings.added_seconds(kind) for kind in sorted(timings.turns)}
    parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in look_parts.items())
    return MeasurementTable(
        title=f"{answers} probe answers in an iteration: {size.model}, {size} tokens",
        columns=("timed iteration", "median", "spread", "repeats", "above one without"),
        rows=[
            [*_cells("without probes", timings.without.total), ""],
            *(
                [
                    *_cells(f"with probes, {kind}", timings.with_probes(kind)),
                    f"{seconds:.3f} s, {100 * seconds / base:.1f} %",
                ]
                for kind, seconds in added.items()
            ),
        ],
        limit_checks=[
            LimitCheck(SHARE_CHECK, timings.percent, 100 * probe_costs(setup.device).share, "%"),
            LimitCheck(WEIGHTS_CHECK, float(comparison.probes_change_nothing), 1.0, at_least=True),
        ],
        notes=[*timings.describe(), f"a look by part: {parts} s", comparison.describe()],
        data={
            "probes": {
                "answers": answers,
                "without": timings.without.data(),
                "with": {kind: timings.with_probes(kind).data() for kind in added},
                "added": added,
                "look_seconds": timings.look,
                "look_parts": look_parts,
                "refresh_seconds": timings.refresh,
                "look_every": timings.cadence.look_every,
                "refresh_every": timings.cadence.refresh_every,
                "percent": timings.percent,
                "weights": asdict(comparison),
            }
        },
    )


# -- time ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeTimings:
    """Iterations without probes, turns of both engines by kind, and the default cadence."""

    without: IterationTimings
    turns: TurnSeconds
    cadence: Cadence

    def with_probes(self, kind: str) -> Timing:
        return Timing(tuple(on for _, on in self.turns[kind]))

    def added_seconds(self, kind: str) -> float:
        """By how much iterations with probes take longer than those without in the same turns."""
        return statistics.median(on - off for off, on in self.turns[kind])

    @property
    def look(self) -> float:
        return self.added_seconds("look")

    @property
    def refresh(self) -> float:
        return self.added_seconds("refresh and look") - self.look

    @property
    def default_seconds(self) -> float:
        return self.cadence.seconds_per_iteration(self.look, self.refresh)

    @property
    def percent(self) -> float:
        return 100 * self.default_seconds / self.without.total.median

    def describe(self) -> list[str]:
        return [
            f"a look adds {self.look:.3f} s, a refresh {self.refresh:.3f} s",
            f"by default a look every {self.cadence.look_every} iterations and a refresh every "
            f"{self.cadence.refresh_every}: {self.default_seconds:.3f} s per iteration, "
            f"{self.percent:.1f} %, computed",
        ]


def time_iterations(setup: SpeedSetup, folder: Path) -> tuple[ProbeTimings, dict[str, float]]:
    """Iterations of an engine without probes and one with them, in turns; the parts of a look."""
    size, answers = setup.plan.probes, setup.plan.probe_answers
    cadence = default_cadence(setup.device, answers, size.rollouts)
    options = measured_options(answers, cadence)
    cycle = LOOKS_IN_CYCLE * options.probe_every
    plain = make_engine(setup, size, workload.MONITOR_OFF, folder / "without")
    probed = make_engine(setup, size, options, folder / "with")
    turns: TurnSeconds = {}
    for turn in range(cycle * (1 + setup.plan.probe_repeats)):
        # In turns, so that drift of the machine affects both alike. One cycle warms up.
        for engine in (plain, probed) if turn % 2 else (probed, plain):
            engine() if turn < cycle else engine.run_timed()
        if turn >= cycle:
            kind = _iteration_kind(probed)
            turn_seconds = plain.seconds[-1], probed.seconds[-1]
            turns.setdefault(kind, []).append(turn_seconds)
            setup.log("probes: {:.3f} s without, {:.3f} s with, ".format(*turn_seconds) + kind)
    probed.check_work(size)
    num_answers = len(probed.state.probes.answers) if probed.state.probes else 0
    if num_answers != answers:
        raise AssertionError(f"{num_answers} answers were followed, not {answers}")
    return ProbeTimings(plain.summarize(size), turns, cadence), time_look(setup, probed)


@torch.no_grad()
def time_look(setup: SpeedSetup, probed: TimedEngine) -> dict[str, float]:
    """Median seconds of the parts of a look; probe answers stand in for the trained rows."""
    state, temperature = probed.state, probed.config.sample.temperature
    assert state.probes is not None
    answers = state.probes.answers
    rows = [answer.row for answer in answers]

    def read() -> TokenScores:
        return score_tokens(state.policy, rows, temperature, state.micro_batch, state.passes.read)

    scores = read()
    order = [*(row % len(rows) for row in range(setup.plan.probes.rollouts)), *range(len(rows))]
    tokens = np.concatenate([rows[index].content.response_tokens for index in order])
    hidden = torch.cat([scores.hidden[index] for index in order])
    lengths = [rows[index].num_tokens for index in order]
    num_trained = sum(lengths[: -len(rows)])
    pushes = HeldoutPushes(
        policy_residuals(state.policy, hidden, torch.from_numpy(tokens).long(), temperature),
        torch.randn(num_trained, generator=torch.Generator().manual_seed(0)) / num_trained,
        lengths[: -len(rows)],
        lengths[-len(rows) :],
    )
    by_row_RQ = pushes.pushes_by_row().float().cpu().numpy()
    right_answers = [index for index, answer in enumerate(answers) if answer.right]
    works: dict[str, Callable[[], object]] = {
        "each of two readings": read,
        "pushes by row": pushes.pushes_by_row,
        "pushes on sets": lambda: pushes.pushes_on_sets(answer_sets(answers)),
        "sums by sign": pushes.sums_by_sign,
        "strongest tokens": lambda: pushes.strongest_tokens(by_row_RQ, right_answers),
    }
    timings = time_in_turns(works, setup.device, repeats=setup.plan.probe_repeats)
    return {name: timing.median for name, timing in timings.items()}


def _iteration_kind(probed: TimedEngine) -> str:
    """What the last iteration of the engine did about its probes."""
    state = probed.state
    if state.iteration % probed.config.monitor.probe_every:
        return "no look"
    is_new = state.probes is not None and state.probes.since == state.iteration
    return "refresh and look" if is_new else "look"


def _cells(kind: str, timing: Timing) -> list[str]:
    return [
        kind,
        format_seconds(timing.median),
        f"{100 * timing.spread:.0f} %",
        f"{len(timing.seconds)}",
    ]


# -- weights ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeightComparison:
    """Whether runs with `update.repeatable` end with the same weights, bit for bit."""

    size: str
    iterations: int
    answers: int
    run_repeats: bool  # two runs without probes are equal: else the comparison says nothing
    equal_with_probes: bool  # a run with probes and one without are equal

    @property
    def probes_change_nothing(self) -> bool:
        return self.run_repeats and self.equal_with_probes

    def describe(self) -> str:
        outcome = (
            "two runs without probes differ, so nothing can be said about probes"
            if not self.run_repeats
            else "runs without probes, and one that looks in each iteration, end with equal weights"
            if self.equal_with_probes
            else "runs without probes end with equal weights, one with probes does not"
        )
        return (
            f"weights after {self.iterations} iterations of {self.size} tokens with "
            f"update.repeatable, {self.answers} answers: {outcome}"
        )


def compare_weights(setup: SpeedSetup, folder: Path) -> WeightComparison:
    """Train twice without probes and once with them, from the same weights."""
    size = setup.plan.probes_compared
    weights: dict[str, list[torch.Tensor]] = {}
    for name, monitor in (
        ("plain", workload.MONITOR_OFF),
        ("again", workload.MONITOR_OFF),
        ("probed", COMPARED_OPTIONS),
    ):
        engine = make_engine(setup, size, monitor, folder / f"weights-{name}", repeatable=True)
        weights["untrained"] = _copy_weights(engine)
        engine.run_timed(COMPARED_ITERATIONS)
        engine.check_work(size)
        weights[name] = _copy_weights(engine)
        if _equal(weights["untrained"], weights[name]):
            raise AssertionError(f"no weight changed in {COMPARED_ITERATIONS} iterations of {size}")
    return WeightComparison(
        size=str(size),
        iterations=COMPARED_ITERATIONS,
        answers=COMPARED_ANSWERS,
        run_repeats=_equal(weights["plain"], weights["again"]),
        equal_with_probes=_equal(weights["plain"], weights["probed"]),
    )


def _copy_weights(engine: TimedEngine) -> list[torch.Tensor]:
    # In half precision a small step may change nothing: the float32 copies show every difference.
    state = engine.state
    return [
        weights.detach().cpu().clone()
        for weights in (*state.policy.model.parameters(), *state.optimizer.masters)
    ]


def _equal(weights: Sequence[torch.Tensor], other_weights: Sequence[torch.Tensor]) -> bool:
    return all(starmap(torch.equal, zip(weights, other_weights, strict=True)))
