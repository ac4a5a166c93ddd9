"""What QB and RB would have made of the rows of one update.

    own        the plan that was replayed
    grouped    QB: the same rows, every group whole in one step
    balanced   RB: the largest batch of these rows in which the rarer sign has a share of tau,
               re-centred as in training and composed by QB; the other rows are dropped

RB as a run would have it lets rows wait for later iterations. Here every iteration stands for
itself, so `balanced` is what one iteration alone can give.

Of each plan: the numbers of batch/describe.py. Where the alternative updates are taken as well,
also what the monitor measured, and how the displacements d of the same tokens agree with `own`:

    same_direction = share of tokens with sign d = sign d_own, among those that both plans moved
    correlation    = Pearson's r of d and d_own
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.microscope.displacement import EPSILON
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.microscope.monitor_records import monitor_metrics
from counterpoise.types import BatchPlan, Row

GROUPED, BALANCED = "grouped", "balanced"
DEFAULT_TAU = 0.25  # of RB, where the run has none
MONITOR_NUMBERS = ("flipped", "cancellation", "moved_positive", "moved_negative")
Displacements = dict[tuple[str, int], NDArray[np.float32]]  # [T] by the names of rows


def alternative_batches(
    batch: Sequence[Row], num_steps: int, tau: float, iteration: int, seed: int
) -> dict[str, tuple[list[Row], BatchPlan]]:
    """The rows and the plan of QB and RB; RB is missing if the rows have only one sign."""
    alternatives = {}
    for name, rows in ((GROUPED, list(batch)), (BALANCED, balance_rows(batch, tau, iteration))):
        if rows:
            num_groups = len({row.group for row in rows})
            plan = compose("grouped", rows, min(num_steps, num_groups), seed)
            alternatives[name] = (rows, plan)
    return alternatives


def balance_rows(batch: Sequence[Row], tau: float, iteration: int) -> list[Row]:
    """The largest batch of these rows with min(N+, N-) >= tau |B|; [] if there is none."""
    num_positive, num_negative = (sum(row.sign == sign for row in batch) for sign in (1, -1))
    rarer = min(num_positive, num_negative)
    target = min(num_positive + num_negative, int(rarer / tau + 1e-9))
    groups: dict[str, list[Row]] = {}
    for row in batch:
        groups.setdefault(row.group, []).append(row)
    # Whole groups leave the buffer, so the largest size that the signs allow may not be reached.
    for size in range(target, 1, -1):
        if tau == 0.5 and size % 2:
            continue  # no odd batch is half positive
        buffer = RewardBalancedBuffer(tau=tau, target=size, max_age=iteration)
        buffer.add(list(groups.values()))
        if balanced := buffer.take(iteration):
            return list(balanced.rows)
    return []


def describe_alternative(rows: Sequence[Row], plan: BatchPlan) -> dict[str, Any]:
    """The single numbers of a plan, and the least share of the rarer sign over its steps."""
    description: dict[str, Any] = {**describe_plan(rows, plan)}
    shares = [share for share in description["positive_share_per_step"] if share is not None]
    numbers = {name: value for name, value in description.items() if not isinstance(value, list)}
    return numbers | {"rarer_sign": min((min(share, 1 - share) for share in shares), default=None)}


def displacement_by_row(
    rows: Sequence[Row], plan: BatchPlan, measurements: Sequence[StepMeasurement]
) -> Displacements:
    """The measured displacement of every row's tokens."""
    displacements: Displacements = {}
    for measurement in measurements:
        step, offset = plan.steps[measurement.step], 0
        for index in measurement.measured_rows:
            length = measurement.lengths[index]
            row = rows[step[measurement.rows[index]]]
            displacements[row.name] = measurement.displacement[offset : offset + length]
            offset += length
    return displacements


def compare_displacements(first: Displacements, second: Displacements) -> dict[str, Any]:
    """How the displacements of the tokens that both measured agree; None where undefined."""
    names = sorted(first.keys() & second.keys())
    if not names:
        return {"common_tokens": 0, "same_direction": None, "correlation": None}
    first_N = np.concatenate([first[name] for name in names]).astype(np.float64)
    second_N = np.concatenate([second[name] for name in names]).astype(np.float64)
    moved = (np.abs(first_N) > EPSILON) & (np.abs(second_N) > EPSILON)
    same_direction = np.sign(first_N) == np.sign(second_N)
    varies = len(first_N) > 1 and first_N.std() > 0 and second_N.std() > 0
    return {
        "common_tokens": len(first_N),
        "same_direction": float(same_direction[moved].mean()) if moved.any() else None,
        "correlation": float(np.corrcoef(first_N, second_N)[0, 1]) if varies else None,
    }


def monitor_numbers(measurements: Sequence[StepMeasurement]) -> dict[str, Any]:
    """The monitor's numbers that are compared between plans."""
    all_numbers = monitor_metrics(measurements)
    return {name: all_numbers[name] for name in MONITOR_NUMBERS}
