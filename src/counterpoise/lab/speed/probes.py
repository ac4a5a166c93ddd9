"""Measure what following held-out answers costs: iterations with and without probes, in turns.

look     what an iteration takes longer that reads the answers before and after its update and sums
         the pushes on them: median of differences from the iteration without probes beside it
refresh  the same of an iteration that draws new answers and then looks at them, minus a look
default  (looks in a period x look + refresh) / period, over an iteration without probes; a period
         of the default options goes from one refresh to the next

Both engines begin with the same weights and sample the same rollouts. If probes only watch, their
weights are equal bit for bit in the end.

The online monitor is off in both, so that the iteration that probes are compared with is as short
as it can be. Every iteration waits until its own files are written.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise.config import MonitorConfig
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import Timing, release, time_in_turns
from counterpoise.lab.speed.iteration import TimedEngine, temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import Bar, MeasurementTable, format_seconds
from counterpoise.microscope.batch_tokens import policy_residuals
from counterpoise.microscope.heldout_pushes import HeldoutPushes
from counterpoise.microscope.probe_monitor import answer_sets
from counterpoise.model.scoring import TokenScores, score_tokens
from counterpoise.run.probes import look_interval
from counterpoise.types import Prompt

PROBE_BARS = {"cuda": 10.0, "cpu": 15.0}  # percent of an iteration
EQUAL_WEIGHTS = "weights as without probes, bit for bit"
TurnSeconds = dict[str, list[tuple[float, float]]]  # by kind: without and with probes
LOOKS_IN_CYCLE = 2  # of the measured iterations: one after a refresh, one without


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often a run with default options looks at its probes and draws new ones."""

    look_every: int  # iterations
    refresh_every: int

    def seconds_per_iteration(self, look: float, refresh: float) -> float:
        return look / self.look_every + refresh / self.refresh_every


def default_cadence(answers: int, rollouts: int) -> Cadence:
    """The cadence of so many answers in iterations of so many rollouts.

    Answers are drawn when they are both old enough and looked at.

    Example:
        >>> default_cadence(256, 512)
        Cadence(look_every=2, refresh_every=20)
    """
    refresh = MonitorConfig().probe_refresh
    interval = look_interval(answers, rollouts, refresh)
    return Cadence(interval, math.ceil(refresh / interval) * interval)


def measured_options(answers: int, cadence: Cadence) -> MonitorConfig:
    """Options with which every second look comes after a refresh.

    Looks in successive iterations share a reading: they do only if the default ones do.
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


def make_engine(setup: SpeedSetup, monitor: MonitorConfig, folder: Path) -> TimedEngine:
    """An engine with weights of its own."""
    size = setup.plan.probes
    policy = workload.load_endless_policy(size.model)
    config = workload.run_config(size, monitor=monitor, **setup.update_options)
    heldout = make_heldout(policy.tokenizer, size.prompts, setup.plan.probe_answers // 2)
    return TimedEngine(policy, config, folder, heldout)


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One iteration of ours that looks at its probes, for `--profile`."""
    monitor = replace(workload.MONITOR_OFF, probe=setup.plan.probe_answers, probe_every=1)
    return make_engine(setup, monitor, folder / "probes")


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Time iterations without probes, with a look, and with a refresh and a look."""
    size, repeats = setup.plan.probes, setup.plan.probe_repeats
    answers = setup.plan.probe_answers
    cadence = default_cadence(answers, size.rollouts)
    options = measured_options(answers, cadence)
    cycle = LOOKS_IN_CYCLE * options.probe_every
    with temporary_run_folders() as folder:
        plain = make_engine(setup, workload.MONITOR_OFF, folder / "without")
        probed = make_engine(setup, options, folder / "with")
        seconds: TurnSeconds = {}
        for turn in range(cycle * (1 + repeats)):
            # In turns, so that drift of the machine affects both alike. One cycle warms up.
            for engine in (plain, probed) if turn % 2 else (probed, plain):
                engine() if turn < cycle else engine.run_timed()
            if turn >= cycle:
                kind, turn_seconds = (
                    _iteration_kind(probed),
                    (plain.seconds[-1], probed.seconds[-1]),
                )
                seconds.setdefault(kind, []).append(turn_seconds)
                setup.log("probes: {:.3f} s without, {:.3f} s with, ".format(*turn_seconds) + kind)
        without = plain.summarize(size)
        probed.check_work(size)
        equal_weights = _equal_weights(plain, probed)
        num_answers = len(probed.state.probes.answers) if probed.state.probes else 0
        if num_answers != answers:
            raise AssertionError(f"{num_answers} answers were followed, not {answers}")
        look_parts = time_look(setup, probed)
        del probed, engine
        release(setup.device)
        notes = []
        if not equal_weights:
            notes = [_compare_two_plain_runs(setup, plain, folder)]
        del plain
    added = {kind: _added_seconds(turns) for kind, turns in seconds.items()}
    timings = {kind: Timing(tuple(on for _, on in turns)) for kind, turns in seconds.items()}
    costs = ProbeCosts(without.total, added["look"], added["refresh and look"], cadence)
    return MeasurementTable(
        title=f"{answers} probe answers in an iteration: {size.model}, {size} tokens",
        columns=("iteration", "median", "spread", "repeats", "above one without"),
        rows=[
            [*_cells("without probes", without.total), ""],
            *(
                [
                    *_cells(kind, timings[kind]),
                    f"{seconds_above:.3f} s, {100 * seconds_above / without.total.median:.1f} %",
                ]
                for kind, seconds_above in sorted(added.items())
            ),
        ],
        bars=[
            Bar("probes, of an iteration", costs.percent, PROBE_BARS[setup.device.type], "%"),
            Bar(EQUAL_WEIGHTS, float(equal_weights), 1.0, at_least=True),
        ],
        notes=[
            *costs.describe(),
            "a look by part: "
            + ", ".join(f"{name} {part_seconds:.3f}" for name, part_seconds in look_parts.items())
            + " s",
            *notes,
        ],
        data={
            "probes": {
                "answers": answers,
                "without": without.data(),
                "with": {kind: timing.data() for kind, timing in timings.items()},
                "added": added,
                "look_seconds": costs.look,
                "look_parts": look_parts,
                "refresh_seconds": costs.refresh,
                "look_every": cadence.look_every,
                "refresh_every": cadence.refresh_every,
                "percent": costs.percent,
                "equal_weights": equal_weights,
            }
        },
    )


@dataclass(frozen=True, slots=True)
class ProbeCosts:
    """Seconds that probes add, and their share of an iteration at the default cadence."""

    without: Timing
    look: float
    refresh_and_look: float
    cadence: Cadence

    @property
    def refresh(self) -> float:
        return self.refresh_and_look - self.look

    @property
    def percent(self) -> float:
        added_seconds = self.cadence.seconds_per_iteration(self.look, self.refresh)
        return 100 * added_seconds / self.without.median

    def describe(self) -> list[str]:
        added_seconds = self.cadence.seconds_per_iteration(self.look, self.refresh)
        return [
            f"a look adds {self.look:.3f} s, a refresh {self.refresh:.3f} s",
            f"by default a look every {self.cadence.look_every} iterations and a refresh every "
            f"{self.cadence.refresh_every}: {added_seconds:.3f} s per iteration, "
            f"{self.percent:.1f} %",
        ]


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


def _added_seconds(turns: Sequence[tuple[float, float]]) -> float:
    """By how much iterations with probes take longer than those without in the same turns."""
    return statistics.median(on - off for off, on in turns)


def _cells(kind: str, timing: Timing) -> list[str]:
    return [
        kind,
        format_seconds(timing.median),
        f"{100 * timing.spread:.0f} %",
        f"{len(timing.seconds)}",
    ]


def _equal_weights(first: TimedEngine, second: TimedEngine) -> bool:
    """Whether all weights of two engines are equal bit for bit, with the optimizer's own copies."""
    return all(
        torch.equal(first_weights, second_weights)
        for first_weights, second_weights in zip(_weights(first), _weights(second), strict=True)
    )


def _weights(engine: TimedEngine) -> list[torch.Tensor]:
    # In half precision a small step may change nothing: the float32 copies show every difference.
    return [*engine.state.policy.model.parameters(), *engine.state.optimizer.masters]


def _compare_two_plain_runs(setup: SpeedSetup, plain: TimedEngine, folder: Path) -> str:
    """Whether a second run without probes has the weights of the first: if not, nothing could."""
    again = make_engine(setup, workload.MONITOR_OFF, folder / "again")
    while again.state.iteration < plain.state.iteration:
        again()
    if _equal_weights(plain, again):
        return "two runs without probes have equal weights: probes changed them"
    return "two runs without probes differ too: this device does not repeat a run bit for bit"
