"""Follow the probes of a run through its iterations: draw them when due, measure, hand over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.microscope.monitor import Monitor
from counterpoise.microscope.probe_monitor import STEER, ProbeMonitor, ProbeReading
from counterpoise.microscope.probe_records import steering_influence
from counterpoise.model.load import Policy
from counterpoise.run.metrics import ProbeLook, StageClock
from counterpoise.run.probes import (
    ProbeSet,
    draw_probes,
    load_probe_file,
    look_interval,
    probe_problems,
)
from counterpoise.run.state import RunState
from counterpoise.sample.collect import SamplerBinding
from counterpoise.types import BatchPlan, Prompt, Row
from counterpoise.update.step import StepObserver, StepObservers
from counterpoise.verify.scores import Verifier


@dataclass(frozen=True, slots=True, eq=False)
class ProbeTracker:
    """The probes of one iteration while it trains."""

    state: RunState
    monitor: ProbeMonitor
    drawing: dict[str, Any] | None  # the line of probes.jsonl, if the answers are new

    def finish(self, clock: StageClock) -> ProbeLook:
        """What was measured; call it after the update's lap, before the iteration is counted."""
        clock.split("update", "probe", self.monitor.stopwatch.seconds)
        measurement = self.monitor.finish(self.state.policy)
        if self.monitor.reading is not None:
            self.state.probe_reading = ProbeReading(self.state.iteration + 1, self.monitor.reading)
        clock.lap("probe")
        return ProbeLook(self.monitor.answers, measurement, self.drawing)


def prepare_probes(policy: Policy, config: RunConfig, heldout: Sequence[Prompt]) -> ProbeSet | None:
    """The answers of `monitor.probe_file`, if there is one; an error if no probe can be had."""
    if config.monitor.probe_file:
        return load_probe_file(config.monitor.probe_file, policy, config)
    if config.monitor.probe and not probe_problems(heldout, config):
        evaluated = f" above evaluate.prompts={config.evaluate.prompts}"
        raise PoiseError(
            f"monitor.probe needs held-out problems{evaluated if config.steers_by_probes else ''}: "
            "raise task.heldout, or give answers in monitor.probe_file"
        )
    return None


def draw_if_due(
    state: RunState,
    sampler: SamplerBinding,
    heldout: Sequence[Prompt],
    config: RunConfig,
    verifier: Verifier,
    clock: StageClock,
) -> None:
    """Draw the probes of the coming iteration, if it follows any and they are missing or old.

    This comes before credit, which may read the steering half.
    """
    options, iteration, probes = config.monitor, state.iteration + 1, state.probes
    is_looked_at = is_look_due(state, config) or config.steers_by_probes
    if not (options.follows_probes and is_looked_at):
        return
    if probes is None or probes.is_due(iteration, options.probe_refresh):
        clock.lap("sample")
        state.probes = draw_probes(sampler, heldout, config, verifier, iteration, probes)
        clock.lap("probe")


def is_look_due(state: RunState, config: RunConfig) -> bool:
    """Whether the coming iteration measures its probes; where they steer, each one does."""
    options, probes = config.monitor, state.probes
    interval = options.probe_every
    if not interval and config.steers_by_probes:
        interval = 1
    elif not interval:
        rollouts = config.sample.prompts * config.sample.group_size
        interval = (
            look_interval(len(probes.answers), rollouts)
            if probes and probes.given
            else look_interval(options.probe, rollouts, options.probe_refresh)
        )
    return (state.iteration + 1) % interval == 0


def steering_rows(state: RunState, config: RunConfig) -> list[Row] | None:
    """The answers that credit may read: those of the steering half; None without probes."""
    if not config.monitor.follows_probes:
        return None
    answers = state.probes.answers if state.probes else ()
    return [answer.row for answer in answers if answer.half == STEER]


def track(state: RunState, config: RunConfig, plan: BatchPlan | None) -> ProbeTracker | None:
    """The tracker of the coming update; None if there is none, no probes, or no look is due."""
    options, iteration = config.monitor, state.iteration + 1
    probes, drawing = state.probes, None
    if plan is None or not options.follows_probes or not is_look_due(state, config):
        return None
    assert probes is not None, "draw_if_due() comes first"
    if not probes.since:
        probes = replace(probes, since=iteration)
        drawing, state.probe_reading = probes.to_record(), None
    state.probes = probes
    if not probes.answers:  # no response has a reward
        return None
    reading = state.probe_reading
    is_current = reading is not None and reading.iteration == state.iteration
    monitor = ProbeMonitor(
        probes.answers,
        config.sample.temperature,
        state.micro_batch,
        state.passes,
        reading.scores if reading is not None and is_current else None,
    )
    return ProbeTracker(state, monitor, drawing)


def influence_by_prompt(
    look: ProbeLook | None, batch: Sequence[Row], plan: BatchPlan | None
) -> dict[str, float]:
    """What the update did to the steering half, by the prompt of its rows; {} if not measured."""
    if look is None or look.measurement is None or plan is None:
        return {}
    places = zip(look.measurement.steps, look.measurement.rows, strict=True)
    prompts = [batch[plan.steps[step][row]].content.prompt_id for step, row in places]
    return steering_influence(look.answers, look.measurement, prompts)


def observe_step(
    monitor: Monitor | None, tracker: ProbeTracker | None, step: int, rows: Sequence[Row]
) -> StepObserver | None:
    """What watches step `step` of the plan: the monitor, the probes, both or neither."""
    step_monitor = monitor and monitor.at(step, rows)
    if tracker is None:
        return step_monitor
    return StepObservers(step_monitor, tracker.monitor.at(step))
