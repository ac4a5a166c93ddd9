"""Follow the probes of a run through its iterations.

They are drawn when due, before credit, and measured during the update; what was measured goes to
the logs. run/probes.py says what probes are, and what their halves `steer` and
`judge` are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.microscope.gradient_products import GradientSettings
from counterpoise.microscope.monitor import Monitor
from counterpoise.microscope.probe_monitor import STEER, ProbeMonitor, ProbeReading
from counterpoise.microscope.probe_records import steering_influence
from counterpoise.model.fit_memory import retry_with_released_memory
from counterpoise.model.load import Policy
from counterpoise.run.metrics import ProbeResult, StageClock
from counterpoise.run.probes import (
    ProbeSet,
    draw_probes,
    load_probe_file,
    measurement_interval,
    probe_problems,
    read_probe_records,
)
from counterpoise.run.state import RunState
from counterpoise.sample.collect import SamplerBinding
from counterpoise.sample.decode_graphs import release_graphs
from counterpoise.types import BatchPlan, Prompt, Row
from counterpoise.update.step import StepObserver, StepObservers
from counterpoise.verify.scores import Verifier


@dataclass(frozen=True, slots=True, eq=False)
class ProbedUpdate:
    """The probes of one iteration while it trains."""

    state: RunState
    monitor: ProbeMonitor
    new_answers_record: dict[str, Any] | None  # as in ProbeResult

    def finish(self, clock: StageClock) -> ProbeResult:
        """What was measured.

        Call it after `clock.lap("update")` and before `state.iteration` is raised.
        """
        clock.split("update", "probe", self.monitor.stopwatch.seconds)
        measurement = retry_with_released_memory(
            lambda: self.monitor.finish(self.state.policy), self._release_memory
        )
        if self.monitor.reading is not None:
            self.state.probe_reading = ProbeReading(self.state.iteration + 1, self.monitor.reading)
        clock.lap("probe")
        return ProbeResult(self.monitor.answers, measurement, self.new_answers_record)

    def _release_memory(self) -> None:
        """Free the graphs of sampling and of the update, and the sampler's keys and values."""
        release_graphs(self.state.policy.decoder)
        self.state.passes.release_memory()


def prepare_probes(policy: Policy, config: RunConfig, heldout: Sequence[Prompt]) -> ProbeSet | None:
    """The answers of `monitor.probe_file`; None without one."""
    check_probes(config, heldout)
    if config.monitor.probe_file:
        return load_probe_file(config.monitor.probe_file, policy, config)
    return None


def check_probes(config: RunConfig, heldout: Sequence[Prompt]) -> None:
    """Raise an error if a record of `monitor.probe_file` holds no answer.

    Without a file: if answers are to be drawn later and there is no problem to draw them for.
    """
    if config.monitor.probe_file:
        read_probe_records(config.monitor.probe_file)
    elif config.monitor.probe and not probe_problems(heldout, config):
        needed_problems = "held-out problems"
        if config.steers_by_probes:
            needed_problems = (
                f"more held-out problems than evaluate.prompts={config.evaluate.prompts}, because "
                "those that steer training are not evaluated"
            )
        raise PoiseError(
            f"monitor.probe needs {needed_problems}: "
            "raise task.heldout, or give answers in monitor.probe_file"
        )


def draw_if_due(
    state: RunState,
    sampler: SamplerBinding,
    heldout: Sequence[Prompt],
    config: RunConfig,
    verifier: Verifier,
    clock: StageClock,
) -> None:
    """Draw new probes if the coming iteration uses probes and they are missing or too old.

    This comes before credit, which may read the half `steer`.
    """
    options, iteration, probes = config.monitor, state.iteration + 1, state.probes
    uses_probes = is_measurement_due(state, config) or config.steers_by_probes
    if not (options.follows_probes and uses_probes):
        return
    if probes is None or probes.is_due(iteration, options.probe_refresh):
        clock.lap("sample")  # what came before is not the probes' time
        state.probes = draw_probes(sampler, heldout, config, verifier, iteration, probes)
        clock.lap("probe")


def is_measurement_due(state: RunState, config: RunConfig) -> bool:
    """Whether the coming iteration measures its probes.

    Where probes steer the run, every iteration does, unless `monitor.probe_every` is set.
    """
    options, probes = config.monitor, state.probes
    interval = options.probe_every
    if not interval and config.steers_by_probes:
        interval = 1
    elif not interval:
        device = state.policy.device
        rollouts = config.sample.prompts * config.sample.group_size
        interval = (
            measurement_interval(device, len(probes.answers), rollouts)
            if probes and probes.from_file
            else measurement_interval(device, options.probe, rollouts, options.probe_refresh)
        )
    return (state.iteration + 1) % interval == 0


def steering_rows(state: RunState, config: RunConfig) -> list[Row] | None:
    """The answers that credit may read, those of the half `steer`; None without probes."""
    if not config.monitor.follows_probes:
        return None
    answers = state.probes.answers if state.probes else ()
    return [answer.row for answer in answers if answer.half == STEER]


def prepare_probed_update(
    state: RunState, config: RunConfig, plan: BatchPlan | None
) -> ProbedUpdate | None:
    """The probes of the coming update, ready to be measured.

    None without an update (`plan` is None), without probes, or if `monitor.probe_every` skips this
    iteration.
    """
    options, iteration = config.monitor, state.iteration + 1
    probes, new_answers_record = state.probes, None
    if plan is None or not options.follows_probes or not is_measurement_due(state, config):
        return None
    assert probes is not None, "draw_if_due() comes first"
    if not probes.since:
        probes = replace(probes, since=iteration)
        new_answers_record, state.probe_reading = probes.to_record(), None
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
        gradients=gradient_settings(config),
    )
    return ProbedUpdate(state, monitor, new_answers_record)


def gradient_settings(config: RunConfig) -> GradientSettings | None:
    """How influence is computed by gradients; None if the output layer is enough."""
    if not config.monitor.takes_gradients:
        return None
    return GradientSettings(
        config.monitor.probe_through,
        config.sample.temperature,
        checkpointing=config.update.checkpointing,
        repeatable=config.update.repeatable,
    )


def influence_by_prompt(
    result: ProbeResult | None, batch: Sequence[Row], plan: BatchPlan | None
) -> dict[str, float]:
    """What the trained rows of each prompt did to the half `steer`; {} if not measured."""
    if result is None or result.measurement is None or plan is None:
        return {}
    places = zip(result.measurement.steps, result.measurement.rows, strict=True)
    prompts = [batch[plan.steps[step][row]].content.prompt_id for step, row in places]
    return steering_influence(result.answers, result.measurement, prompts)


def observe_step(
    monitor: Monitor | None, probes: ProbedUpdate | None, step: int, rows: Sequence[Row]
) -> StepObserver | None:
    """The observer of step `step` of the plan: the monitor, the probes, both or neither."""
    step_monitor = monitor and monitor.at(step, rows)
    if probes is None:
        return step_monitor
    return StepObservers(step_monitor, probes.monitor.at(step))
