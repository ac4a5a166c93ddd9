"""Measure how long composers take, and how evenly they fill the steps.

    python -m counterpoise.lab.speed.composers                # 100,000 rows; 128 x 8 over 200 seeds
    python -m counterpoise.lab.speed.composers --correlated   # equal lengths in a group: harder

Lengths are log-normal. `heaviest / mean` is the token load of the heaviest step over the mean;
`split` is the share of groups whose rows are in several steps. by_sign and zigzag do not try to
balance tokens and show what that costs. coupled is left out: it compares tokens, and these rows
have none.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rich.table import Table

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.lab.speed.tables import make_console
from counterpoise.types import Row
from counterpoise.variants import COMPOSERS


def make_rows(groups: int, size: int, sigma: float, correlated: bool, seed: int) -> list[Row]:
    """Rows with advantages r - mean; r is 0 or 1 (rate 0.4), both in every group."""
    rng = np.random.default_rng(seed)
    log_lengths = rng.normal(0.0, sigma, (groups, 1 if correlated else size))
    lengths_PG = np.broadcast_to(np.maximum(1, np.rint(400 * np.exp(log_lengths))), (groups, size))
    rewards_PG = rng.random((groups, size)) < 0.4
    rewards_PG[:, 0], rewards_PG[:, -1] = True, False
    advantages_PG = rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
    return [
        Row(
            f"g{group}",
            float(advantages_PG[group, index]),
            int(lengths_PG[group, index]),
            index=index,
        )
        for group in range(groups)
        for index in range(size)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the timed batch")
    parser.add_argument("--groups", type=int, default=128, help="groups of the measured batches")
    parser.add_argument("--size", type=int, default=8, help="rows of a group")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--sigma", type=float, default=1.0, help="standard deviation of the log of the length"
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--correlated", action="store_true", help="one length for a whole group")
    options = parser.parse_args()

    shape = (options.size, options.sigma, options.correlated)
    timed_batch = make_rows(options.rows // options.size, *shape, seed=0)
    measured_batches = [
        make_rows(options.groups, *shape, seed=seed) for seed in range(options.seeds)
    ]
    table = Table(
        title=f"{options.groups} x {options.size} rows in {options.steps} steps, "
        f"{options.seeds} seeds"
    )
    columns = (
        "heaviest / mean, average",
        "worst",
        "groups a step",
        "split",
        f"{len(timed_batch)} rows",
    )
    table.add_column("composer")
    for column in columns:
        table.add_column(column, justify="right")
    for composer in COMPOSERS:
        if composer == "coupled":
            continue
        steps = 1 if composer == "whole" else options.steps
        plans = [compose(composer, rows, steps, seed) for seed, rows in enumerate(measured_batches)]
        descriptions = [
            describe_plan(rows, plan) for rows, plan in zip(measured_batches, plans, strict=True)
        ]
        imbalances = [description["token_imbalance"] for description in descriptions]
        groups_per_step = [
            len({rows[row_index].group for row_index in step})
            for rows, plan in zip(measured_batches, plans, strict=True)
            for step in plan.steps
        ]
        start_time = time.perf_counter()
        compose(composer, timed_batch, steps, seed=0)
        seconds = time.perf_counter() - start_time
        table.add_row(
            composer,
            f"{np.mean(imbalances):.5f}",
            f"{max(imbalances):.5f}",
            f"{min(groups_per_step)} to {max(groups_per_step)}",
            f"{np.mean([description['split_share'] for description in descriptions]):.1%}",
            f"{seconds:.2f} s",
        )
    make_console().print(table)


if __name__ == "__main__":
    main()
