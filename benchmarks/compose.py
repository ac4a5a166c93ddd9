"""How long composing takes, and how even the steps come out.

    python benchmarks/compose.py                    # 100,000 rows; 128 x 8 over 200 seeds
    python benchmarks/compose.py --correlated       # one length a group: harder to balance

Lengths are log-normal. `heaviest / mean` is a step's token load; `split` the share of groups that
are cut. by_sign and zigzag are not meant to balance: they show what it costs. coupled is left out:
it compares tokens, and these rows have none.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.types import Row
from counterpoise.variants import COMPOSERS


def make_rows(groups: int, size: int, sigma: float, correlated: bool, seed: int) -> list[Row]:
    """0/1 rewards at rate 0.4, advantages r - mean; at least one of each in every group."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(0.0, sigma, (groups, 1 if correlated else size))
    lengths_PG = np.broadcast_to(np.maximum(1, np.rint(400 * np.exp(spread))), (groups, size))
    rewards_PG = rng.random((groups, size)) < 0.4
    rewards_PG[:, 0], rewards_PG[:, -1] = True, False
    advantages_PG = rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
    return [
        Row(f"g{g}", float(advantages_PG[g, i]), int(lengths_PG[g, i]), index=i)
        for g in range(groups)
        for i in range(size)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the timed batch")
    parser.add_argument("--groups", type=int, default=128, help="groups of the measured batches")
    parser.add_argument("--size", type=int, default=8, help="rows of a group")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--sigma", type=float, default=1.0, help="of the log of the length")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--correlated", action="store_true", help="one length for a whole group")
    options = parser.parse_args()

    shape = (options.size, options.sigma, options.correlated)
    large = make_rows(options.rows // options.size, *shape, seed=0)
    small = [make_rows(options.groups, *shape, seed=seed) for seed in range(options.seeds)]
    table = Table(
        title=f"{options.groups} x {options.size} rows in {options.steps} steps, "
        f"{options.seeds} seeds"
    )
    columns = ("heaviest / mean, average", "worst", "groups a step", "split", f"{len(large)} rows")
    table.add_column("composer")
    for column in columns:
        table.add_column(column, justify="right")
    for rule in COMPOSERS:
        if rule == "coupled":
            continue
        steps = 1 if rule == "whole" else options.steps
        plans = [compose(rule, rows, steps, seed) for seed, rows in enumerate(small)]
        told = [describe_plan(rows, plan) for rows, plan in zip(small, plans, strict=True)]
        imbalances = [description["token_imbalance"] for description in told]
        groups = [
            len({rows[i].group for i in step})
            for rows, plan in zip(small, plans, strict=True)
            for step in plan.steps
        ]
        began = time.perf_counter()
        compose(rule, large, steps, seed=0)
        seconds = time.perf_counter() - began
        table.add_row(
            rule,
            f"{np.mean(imbalances):.5f}",
            f"{max(imbalances):.5f}",
            f"{min(groups)} to {max(groups)}",
            f"{np.mean([description['split_share'] for description in told]):.1%}",
            f"{seconds:.2f} s",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
