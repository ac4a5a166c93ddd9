"""Measure the update: ours, a padded one with transformers' forward, and the floor.

    share of the matrix rate = model FLOP / (seconds * measured matrix rate)

Model FLOP are those of `floors.update_cost`: for the tokens of our pass (every prompt once),
without recomputation. The padded step computes the prompt again for each row; its share counts that
work, but not its padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import PeakMemory, Timing, release, time_in_turns
from counterpoise.lab.speed.floors import DeviceRates, sizes_of, update_cost, update_floor
from counterpoise.lab.speed.machine_sizes import SpeedSetup, UpdateCase
from counterpoise.lab.speed.tables import (
    LimitCheck,
    MeasurementTable,
    format_gigabytes,
    format_seconds,
)
from counterpoise.model.load import Policy
from counterpoise.types import Row
from counterpoise.update.graphs.passes import choose_passes
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

UPDATE_LIMIT = 0.25  # seconds, 512 rows of 128 tokens of SmolLM2-135M on an H200
SHARE_LIMIT = 40.0  # percent of the matrix rate, Qwen3-1.7B, 256 rows of about 1,000 tokens
PADDED_TOKENS = 32768  # of one forward of the padded step; halved if it does not fit


def native_step(policy: Policy, rows: Sequence[Row], config: UpdateConfig) -> Callable[[], None]:
    """Our optimizer step as a function that can be called repeatedly."""
    optimizer, passes = Optimizer(policy.model, config), choose_passes(config)
    longest = max(row.num_tokens for row in rows)

    def step() -> None:
        result = take_step(
            policy,
            optimizer,
            rows,
            StepSettings(config, temperature=1.0, max_new_tokens=longest, passes=passes),
        )
        if result.skipped:
            raise AssertionError(f"the update was skipped: {result.skipped}")

    return step


def padded_step(
    policy: Policy,
    optimizer: Optimizer | None,
    rows: Sequence[Row],
    config: UpdateConfig,
    tokens: int = PADDED_TOKENS,
) -> None:
    """The same step with transformers' forward: rows padded to the longest, prompts repeated.

    Without an optimizer the gradient is left in `weight.grad`.
    """
    longest = max(len(row.content.prompt_tokens) + row.num_tokens for row in rows)
    rows_per_batch = max(1, tokens // longest)
    # Divide by the tokens of the whole step, so that the split into batches does not matter.
    step_tokens = sum(row.num_tokens for row in rows)
    if optimizer:
        optimizer.zero_grad()
    for first_row in range(0, len(rows), rows_per_batch):
        micro_batch = rows[first_row : first_row + rows_per_batch]
        logprobs, old_logprobs, advantages = _padded_logprobs(policy, micro_batch)
        ratio = torch.exp(logprobs - old_logprobs)
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        (-torch.minimum(ratio * advantages, clipped * advantages).sum() / step_tokens).backward()
    if optimizer:
        optimizer.step(optimizer.grad_norm())
        optimizer.zero_grad()


def _padded_logprobs(policy: Policy, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, old ones and advantages [R, T]; padding has advantage 0."""
    S = max(len(row.content.prompt_tokens) for row in rows)
    T = max(row.num_tokens for row in rows)
    tokens_RL = np.zeros((len(rows), S + T), dtype=np.int64)
    attention_RL = np.zeros_like(tokens_RL)
    old_logprobs, advantages = (np.zeros((len(rows), T), dtype=np.float32) for _ in range(2))
    for index, row in enumerate(rows):
        prompt, response = row.content.prompt_tokens, row.content.response_tokens
        first_column, last_column = S - len(prompt), S + len(response)
        tokens_RL[index, first_column:last_column] = np.concatenate((prompt, response))
        attention_RL[index, first_column:last_column] = 1
        old_logprobs[index, : len(response)] = row.old_logprobs
        advantages[index, : len(response)] = row.advantages_T
    tokens, attention, old_RT, advantages_RT = (
        torch.from_numpy(array).to(policy.device)
        for array in (tokens_RL, attention_RL, old_logprobs, advantages)
    )
    model: Any = policy.model
    # Prompts are padded on the left: positions must start at the first real token.
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(
        input_ids=tokens, attention_mask=attention, position_ids=positions, use_cache=False,
        logits_to_keep=T + 1,
    ).logits[:, :-1]  # fmt: skip
    targets = tokens[:, S:]
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return -losses.view_as(targets), old_RT, advantages_RT


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One step of the last case, for `--profile`."""
    case = setup.plan.update[-1]
    policy = workload.load_endless_policy(case.model)
    rows = _rows(policy, case)[: case.padded_groups * case.group_size]
    return native_step(
        policy, rows, UpdateConfig(lr=workload.LEARNING_RATE, **setup.update_options)
    )


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Time an optimizer step for every case of the plan."""
    measurements = []
    for case in setup.plan.update:
        measurements.append(_measure_case(setup, case))
        release(setup.device)
    return MeasurementTable(
        title=f"update: one optimizer step; matrix rate {setup.rates.matrix / 1e12:.3g} TFLOP/s",
        columns=(
            "model", "rows", "tokens", "ours", "spread", "floor", "tokens/s", "of matrix rate",
            "peak", "padded: tokens/s", "of matrix rate", "ours is",
        ),
        rows=[measurement.cells() for measurement in measurements],
        limit_checks=[
            limit_check
            for measurement in measurements
            if setup.cuda
            for limit_check in measurement.limit_checks()
        ],
        notes=[
            "tokens: of all rows, each with its prompt; the padded step may get fewer rows"
        ],
        data={"update": [measurement.data() for measurement in measurements]},
    )  # fmt: skip


def _rows(policy: Policy, case: UpdateCase) -> list[Row]:
    vocabulary = len(policy.decoder.unembedding)
    return workload.make_rows(
        vocabulary, case.groups, case.group_size, case.prompt_tokens, case.response_tokens
    )


def _count_tokens(rows: Sequence[Row]) -> int:
    return sum(len(row.content.prompt_tokens) + row.num_tokens for row in rows)


@dataclass(frozen=True, slots=True)
class StepThroughput:
    """A timed optimizer step and the work that it did."""

    timing: Timing
    tokens: int  # of all rows, each with its prompt
    flop: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.timing.median

    def share_percent(self, rates: DeviceRates) -> float:
        """Of the measured matrix rate."""
        return 100 * self.flop / self.timing.median / rates.matrix


@dataclass(frozen=True, slots=True)
class UpdateMeasurement:
    """One case: our step, and the padded one if it fits into memory."""

    case: UpdateCase
    rates: DeviceRates
    num_rows: int
    pass_tokens: int  # of our pass, which has every prompt once
    floor: float  # seconds
    peak: PeakMemory
    ours: StepThroughput
    padded: StepThroughput | None

    def cells(self) -> list[str]:
        padded_cells = ["-"] * 3
        if self.padded:
            ratio = self.ours.tokens_per_second / self.padded.tokens_per_second
            padded_cells = [*_throughput_cells(self.padded, self.rates), f"{ratio:.1f}x"]
        return [
            self.case.model,
            f"{self.num_rows:,}",
            f"{self.ours.tokens:,}",
            format_seconds(self.ours.timing.median),
            f"{100 * self.ours.timing.spread:.0f} %",
            format_seconds(self.floor),
            *_throughput_cells(self.ours, self.rates),
            format_gigabytes(self.peak.reserved),
            *padded_cells,
        ]

    def limit_checks(self) -> list[LimitCheck]:
        """The limit of the case, if it has one, checked; limits are for a GPU."""
        if self.case.limit_on == "seconds":
            seconds = self.ours.timing.median
            return [LimitCheck(f"update of {self.num_rows} rows", seconds, UPDATE_LIMIT, "s")]
        if self.case.limit_on == "utilization":
            share = self.ours.share_percent(self.rates)
            return [
                LimitCheck(f"update of {self.case.model}", share, SHARE_LIMIT, "%", at_least=True)
            ]
        return []

    def data(self) -> dict[str, Any]:
        ours, padded = self.ours, self.padded
        return {
            "model": self.case.model,
            "rows": self.num_rows,
            "tokens": ours.tokens,
            "pass_tokens": self.pass_tokens,
            "ours": ours.timing.data(),
            "flop": ours.flop,
            "floor": self.floor,
            "share_percent": ours.share_percent(self.rates),
            "tokens_per_second": ours.tokens_per_second,
            "padded": padded.timing.data() if padded else None,
            "padded_tokens_per_second": padded.tokens_per_second if padded else None,
            **self.peak.data(),
        }


def _throughput_cells(step: StepThroughput, rates: DeviceRates) -> list[str]:
    return [f"{step.tokens_per_second:,.0f}", f"{step.share_percent(rates):.1f} %"]


def _measure_case(setup: SpeedSetup, case: UpdateCase) -> UpdateMeasurement:
    config = UpdateConfig(lr=workload.LEARNING_RATE, **setup.update_options)
    with PeakMemory(setup.device) as peak:
        policy = workload.load_endless_policy(case.model)
        rows = _rows(policy, case)
        step = native_step(policy, rows, config)
        for _ in range(3):  # load and compile, then capture graphs, then replay them
            step()
    padded_rows = rows[: case.padded_groups * case.group_size]
    padded = _fitting_padded_step(setup, policy, padded_rows, config)
    steps = {"ours": step} | ({"padded": padded} if padded else {})
    timings = time_in_turns(steps, setup.device, case.repeats, warm_up=0)
    sizes = sizes_of(policy)
    cost, pass_tokens = update_cost(sizes, workload.group_lengths(rows))
    ours = StepThroughput(timings["ours"], _count_tokens(rows), cost.flop)
    share = ours.share_percent(setup.rates)
    setup.log(f"update, {case.model}: {ours.timing.median:.3f} s, {share:.0f} % of the matrix rate")
    padded_throughput = None
    if "padded" in timings:
        # It repeats the prompt for every row, so each of its rows counts as a separate group.
        lengths = [
            (S, [T]) for S, responses in workload.group_lengths(padded_rows) for T in responses
        ]
        padded_throughput = StepThroughput(
            timings["padded"], _count_tokens(padded_rows), update_cost(sizes, lengths)[0].flop
        )
    return UpdateMeasurement(
        case=case,
        rates=setup.rates,
        num_rows=len(rows),
        pass_tokens=pass_tokens,
        floor=update_floor(cost, setup.rates),
        peak=peak,
        ours=ours,
        padded=padded_throughput,
    )


def _fitting_padded_step(
    setup: SpeedSetup,
    policy: Policy,
    rows: Sequence[Row],
    config: UpdateConfig,
) -> Callable[[], None] | None:
    """The padded step with the largest micro-batch that fits; None if one row does not fit."""
    optimizer, tokens = Optimizer(policy.model, config), PADDED_TOKENS
    while tokens:
        step = partial(padded_step, policy, optimizer, rows, config, tokens)
        try:
            step()
        except torch.OutOfMemoryError:
            tokens //= 2
        else:
            return step
        optimizer.zero_grad()
        release(setup.device)
    return None
