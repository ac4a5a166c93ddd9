"""The driver's part of the monitor: how tokens moved, and for which rows pushes are computed.

Displacement is log p after the update minus log p before it: verl's scoring pass gives the
log-probabilities before; one more pass gives those after, in the same layout. An update is all
optimizer steps of a batch. Which tokens pushed a token (microscope/coupling.py) is computed in the
workers (step_coupling.py), for the rows that are chosen here: whole steps at random, as long as
they fit into `limit` tokens. If the first of them does not fit, its first groups that do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.microscope.displacement import flipped_tokens, shares_by_sign
from counterpoise.types import BatchPlan, Floats, Row

WATCHED_GROUPS = 2  # groups of a step whose strongest pushes are kept, as in the native engine
# The numbers of metrics.jsonl that need no displacement.
COUPLING_METRICS = (
    "cancellation", "own_share", "same_token_share", "shared_prefix_share", "exchangeability",
)  # fmt: skip


def displacement_shares(
    logprobs_before: Sequence[Floats],
    logprobs_after: Sequence[Floats],
    advantages: Sequence[Floats],
) -> dict[str, float]:
    """Shares of the trained tokens that moved, named as in metrics.jsonl; the lists are by row."""
    delta_N = np.concatenate(logprobs_after) - np.concatenate(logprobs_before)
    advantages_N = np.concatenate(advantages)
    metrics: dict[str, float] = {}
    for sign, shares in shares_by_sign(delta_N, advantages_N).items():
        if shares is not None:
            metrics |= {
                f"boosted_{sign}": shares.boosted,
                f"suppressed_{sign}": shares.suppressed,
                f"stable_{sign}": shares.stable,
                f"moved_{sign}": shares.mean_abs,
            }
    has_signal_N = advantages_N != 0
    if has_signal_N.any():
        metrics["flipped"] = float(flipped_tokens(delta_N, advantages_N)[has_signal_N].mean())
    return metrics


def choose_coupled_rows(
    rows: Sequence[Row], plan: BatchPlan, limit: int, seed: int
) -> list[list[int]]:
    """The rows of each step whose pushes are computed, as indices of `rows`; all have signal.

    Example:
        >>> rows = [Row("a", 1.0, 5), Row("a", -1.0, 5), Row("b", 1.0, 5), Row("b", 0.0, 5)]
        >>> choose_coupled_rows(rows, BatchPlan("grouped", ((0, 1), (2, 3))), limit=0, seed=0)
        [[0, 1], [2]]
        >>> choose_coupled_rows(rows, BatchPlan("whole", ((0, 1, 2, 3),)), limit=12, seed=0)
        [[0, 1]]
    """
    trained_rows = [
        [i for i in step if rows[i].advantage and rows[i].num_tokens] for step in plan.steps
    ]
    chosen_rows: list[list[int]] = [[] for _ in plan.steps]
    num_tokens = 0
    for step in np.random.default_rng(seed).permutation(len(plan.steps)):
        step_tokens = sum(rows[i].num_tokens for i in trained_rows[step])
        fits = not limit or num_tokens + step_tokens <= limit
        if fits:
            chosen_rows[step] = trained_rows[step]
        elif not num_tokens:  # the first one is too large by itself
            chosen_rows[step] = _first_groups(rows, trained_rows[step], limit)
        if not fits:
            break
        num_tokens += step_tokens
    return chosen_rows


def _first_groups(rows: Sequence[Row], step_rows: Sequence[int], limit: int) -> list[int]:
    """The rows of the first groups that fit into `limit` tokens together, at least one group."""
    members: dict[str, list[int]] = {}
    for i in step_rows:
        members.setdefault(rows[i].group, []).append(i)
    chosen_rows: list[int] = []
    num_tokens = 0
    for group_rows in members.values():
        num_tokens += sum(rows[i].num_tokens for i in group_rows)
        if chosen_rows and num_tokens > limit:
            break
        chosen_rows += group_rows
    return chosen_rows
