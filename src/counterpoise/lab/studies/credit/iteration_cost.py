"""One iteration of an arm on one batch from one checkpoint: the effect of its steps and their cost.

The stages of `loop.py` after sampling run once for each arm, with a fresh optimizer and no warm-up;
the caller restores the weights. Seconds are process time on a CPU, so that other processes do not
count, and wall-clock time on a GPU; the monitor's seconds are subtracted.
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
from counterpoise.sample.choose_prompts import pick_prompts
from counterpoise.sample.collect import SamplerBinding, draw_responses
from counterpoise.seeds import seed_for
from counterpoise.statistics.finding import Record
from counterpoise.types import Group, Row, StepResult

SUM_NAMES = ("left", "gross", "rest", "whole", "net", "pushed")
TIMING_BATCH = 2  # sampled only for timing: other rollouts than the study's


@dataclass(frozen=True, slots=True, eq=False)
class IterationOutcome:
    """Rows, steps and seconds of one iteration."""

    rows: list[Row]  # all rows of the batch, with credit
    results: list[StepResult]
    measurements: list[StepMeasurement]  # one for each applied step
    seconds: float


def run_one_iteration(lab: Lab, groups: Sequence[Group], config: RunConfig) -> IterationOutcome:
    """One iteration as in `loop.iterate`, from existing groups on. The weights are changed."""
    state = new_state(lab.policy, config)
    # The monitor's own seconds are measured and subtracted: training may run without it.
    monitor = TimedMonitor(config.sample.temperature, state.micro_batch, ())
    start_seconds = seconds_spent(lab.policy)
    reader = loop.make_policy_reader(state, config)
    credited = loop.assign_credit(groups, config, reader)
    rows, _ = loop.balance_batch(state, credited, config, 1)
    # The seed of the first iteration, so that every arm composes the batch as a run would.
    seed = seed_for(config.loop.seed, "compose", 1)
    plan = compose(config.batch.composer, rows, config.batch.steps, seed)
    rows = loop.with_old_logprobs(state, rows, plan, config, reader.scores)
    results = loop.update(state, rows, plan, config, monitor)
    seconds = seconds_spent(lab.policy) - start_seconds - monitor.monitor_seconds
    return IterationOutcome(rows, results, monitor.measurements, seconds)


class TimedMonitor(Monitor):
    """A monitor that adds up its own seconds by the study's clock."""

    monitor_seconds = 0.0

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        start_seconds = seconds_spent(policy)
        super().before_update(policy, rows, result)
        self.monitor_seconds += seconds_spent(policy) - start_seconds

    def after_update(self, policy: Policy) -> None:
        start_seconds = seconds_spent(policy)
        super().after_update(policy)
        self.monitor_seconds += seconds_spent(policy) - start_seconds


def seconds_spent(policy: Policy) -> float:
    """Process time on a CPU; on a GPU the wall clock, after waiting for its queue."""
    if policy.device.type == "cuda":
        torch.cuda.synchronize(policy.device)
        return time.perf_counter()
    return time.process_time()


def sampling_seconds(lab: Lab, prompts: int) -> float:
    """Seconds that it takes to sample the groups of `prompts` prompts."""
    config = lab.config_with(*COMMON_OPTIONS, "batch.steps=1", f"sample.prompts={prompts}")
    timed_prompts = pick_prompts(lab.encoded_prompts, config, TIMING_BATCH)
    start_seconds = seconds_spent(lab.policy)
    draw_responses(SamplerBinding(lab.policy), timed_prompts, config, TIMING_BATCH)
    return seconds_spent(lab.policy) - start_seconds


def prompt_sums(outcome: IterationOutcome) -> list[Record]:
    """Sums for every prompt over the applied steps.

    left, gross    net and gross pull on shared prefixes; their ratio is the exchangeability
                   residual, the share of the pull that does not cancel
    rest, whole    |sum_i p_i| and sum_i |p_i|, with p_i the mean pull on the tokens of rollout i:
                   what a token shared by all rollouts would get (DFPO's condition: rest = 0)
    net, pushed    |total| and |positive| + |negative| push on its tokens, by the output layer
    """
    sums_by_prompt: dict[str, Record] = {}
    applied_steps = [result for result in outcome.results if not result.skipped]
    for result, measurement in zip(applied_steps, outcome.measurements, strict=True):
        step_rows = [outcome.rows[index] for index in result.rows]
        prompt_names = list(dict.fromkeys(row.group for row in step_rows))
        for prompt_name in prompt_names:
            member_indices = [
                index for index, row in enumerate(step_rows) if row.group == prompt_name
            ]
            pulls = [result.pulls[index].astype(np.float64) for index in member_indices]
            prefix_pulls = measure_shared_prefixes(
                [step_rows[index] for index in member_indices], pulls
            )
            means_G = np.array([pull_T.mean() for pull_T in pulls])
            sums = sums_by_prompt.setdefault(
                prompt_name, {"prompt": prompt_name, **dict.fromkeys(SUM_NAMES, 0.0)}
            )
            sums["left"] += prefix_pulls.net_pull
            sums["gross"] += prefix_pulls.gross_pull
            sums["rest"] += float(abs(means_G.sum()))
            sums["whole"] += float(np.abs(means_G).sum())
        prompt_index_N = np.repeat(
            [prompt_names.index(row.group) for row in step_rows], measurement.lengths
        )
        coupling = measurement.coupling
        net_N = coupling.total.double().abs().numpy()
        pushed_N = (coupling.positive.double().abs() + coupling.negative.double().abs()).numpy()
        for column, push_N in (("net", net_N), ("pushed", pushed_N)):
            for prompt_name, total in zip(
                prompt_names, np.bincount(prompt_index_N, push_N), strict=True
            ):
                sums_by_prompt[prompt_name][column] += float(total)
    return list(sums_by_prompt.values())
