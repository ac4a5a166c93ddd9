"""One iteration of an arm on one batch, from one checkpoint: what its steps do, and their cost.

The stages of `loop.py` that come after sampling run once more for each arm, with a fresh optimizer
and no warm-up; the weights are put back. Seconds are of the processor's own time on a CPU, where
neighbours do not count, and of the clock on a GPU; the monitor's are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from counterpoise import loop
from counterpoise.batch.compose import compose
from counterpoise.config import RunConfig
from counterpoise.lab.studies.credit.arms import COMMON_OPTIONS
from counterpoise.lab.studies.harness import Lab
from counterpoise.microscope.monitor import Monitor, StepMeasurement
from counterpoise.microscope.prefixes import measure_shared_prefixes
from counterpoise.model.load import Policy
from counterpoise.run.state import new_state
from counterpoise.sample.collect import Drawer, draw, pick_prompts
from counterpoise.seeds import seed_for
from counterpoise.statistics.finding import Record
from counterpoise.types import Group, Row, StepResult

SUM_NAMES = ("left", "gross", "rest", "whole", "net", "pushed")
TIMING_BATCH = 2  # the batch that is drawn to see how long it takes: other prompts than the study's


@dataclass(frozen=True, slots=True, eq=False)
class IterationOutcome:
    """What one iteration of an arm left."""

    rows: list[Row]  # credited, all of the batch
    results: list[StepResult]
    measurements: list[StepMeasurement]  # one for each step that was taken
    seconds: float


def run_one_iteration(lab: Lab, groups: Sequence[Group], config: RunConfig) -> IterationOutcome:
    """As `loop.iterate`, from the groups on. The weights are left as the update made them."""
    state = new_state(lab.policy, config)
    monitor = TimedMonitor(config.sample.temperature, state.micro, ())
    start = seconds_spent(lab.policy)
    reader = loop.reader_of(state, config)
    credited = loop.credit(groups, config, reader)
    rows = loop.balance(state, credited, config, 1)
    seed = seed_for(config.loop.seed, "compose", 1)
    plan = compose(config.batch.composer, rows, config.batch.steps, seed)
    rows = loop.with_old_logprobs(state, rows, plan, config, reader.scores)
    results = loop.update(state, rows, plan, config, monitor)
    seconds = seconds_spent(lab.policy) - start - monitor.monitor_seconds
    return IterationOutcome(rows, results, monitor.measurements, seconds)


class TimedMonitor(Monitor):
    """A monitor that says what it cost by the study's clock."""

    monitor_seconds = 0.0

    def before(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        start = seconds_spent(policy)
        super().before(policy, rows, result)
        self.monitor_seconds += seconds_spent(policy) - start

    def after(self, policy: Policy) -> None:
        start = seconds_spent(policy)
        super().after(policy)
        self.monitor_seconds += seconds_spent(policy) - start


def seconds_spent(policy: Policy) -> float:
    """Seconds so far: the process's own on a CPU; on a GPU by the clock, when its work is done."""
    if policy.device.type == "cuda":
        torch.cuda.synchronize(policy.device)
        return time.perf_counter()
    return time.process_time()


def sampling_seconds(lab: Lab, prompts: int) -> float:
    """Of the groups of so many prompts."""
    config = lab.config_with(*COMMON_OPTIONS, "batch.steps=1", f"sample.prompts={prompts}")
    chosen = pick_prompts(lab.encoded_prompts, config, TIMING_BATCH)
    start = seconds_spent(lab.policy)
    draw(Drawer(lab.policy), chosen, config, TIMING_BATCH)
    return seconds_spent(lab.policy) - start


def prompt_sums(one: IterationOutcome) -> list[Record]:
    """For every prompt, over the steps that were taken.

    left, gross    what is left of the pull on shared prefixes, and all of it
    rest, whole    |sum_i p_i| and sum_i |p_i|, p_i the mean pull on the tokens of rollout i: what
                   the group leaves where all of it is of one mind (DFPO's condition: rest = 0)
    net, pushed    |total| and |positive| + |negative| push on its tokens, by the output layer
    """
    found: dict[str, Record] = {}
    taken = [result for result in one.results if not result.skipped]
    for result, view in zip(taken, one.measurements, strict=True):
        used = [one.rows[i] for i in result.rows]
        names = list(dict.fromkeys(row.group for row in used))
        for name in names:
            mine = [i for i, row in enumerate(used) if row.group == name]
            pulls = [result.pulls[i].astype(np.float64) for i in mine]
            part = measure_shared_prefixes([used[i] for i in mine], pulls)
            means_G = np.array([pull_T.mean() for pull_T in pulls])
            sums = found.setdefault(name, {"prompt": name, **dict.fromkeys(SUM_NAMES, 0.0)})
            sums["left"] += part.net_pull
            sums["gross"] += part.gross_pull
            sums["rest"] += float(abs(means_G.sum()))
            sums["whole"] += float(np.abs(means_G).sum())
        number_N = np.repeat([names.index(row.group) for row in used], view.lengths)
        c = view.coupling
        net_N = c.total.double().abs().numpy()
        pushed_N = (c.positive.double().abs() + c.negative.double().abs()).numpy()
        for column, size_N in (("net", net_N), ("pushed", pushed_N)):
            for name, total in zip(names, np.bincount(number_N, size_N), strict=True):
                found[name][column] += float(total)
    return list(found.values())
