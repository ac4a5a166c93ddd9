"""The monitor's views of one iteration as numbers and tables.

    flipped            share of tokens that moved against their own advantage
    cancellation       1 - sum_j |total_j| / sum_j (|positive_j| + |negative_j|)
    own_share          sum |own| / (sum |own| + sum |coupled|)
    same_token_share   of the absolute mass of all coupling parts, what equal tokens make
    proxy_agreement    share of tokens whose displacement has the sign the output layer predicts
    exchangeability    |sum A w| / sum |A| w on the prefixes that rollouts of a group share
    learning_tax       mean KL(new || old), nats, where right and wrong rollouts share a place
    solution_drift     mean absolute change of the log-odds between right answers of one query

Steps are looked at one by one, because what is in another step cannot cancel; their tokens are
then pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.microscope.coupling import CouplingPart
from counterpoise.microscope.displacement import EPSILON, flipped_tokens, shares_by_sign
from counterpoise.microscope.learning_tax import PooledMean
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.types import Floats, TokenTrace

REPORTED_TYPES = 12  # token types reported, those with most pull
_SIGN_FIELDS = ("boosted", "suppressed", "stable", "moved")
METRIC_NAMES = (
    *(f"{name}_{sign}" for sign in ("positive", "negative") for name in _SIGN_FIELDS),
    "flipped", "cancellation", "cancellation_types", "own_share", "same_token_share",
    "proxy_agreement", "shared_prefix_share", "exchangeability", "learning_tax", "solution_drift",
)  # fmt: skip


def monitor_metrics(measurements: Sequence[StepMeasurement]) -> dict[str, Any]:
    """Fields of metrics.jsonl; None where nothing was looked at."""
    if not measurements:
        return dict.fromkeys(METRIC_NAMES)
    delta = np.concatenate([view.displacement for view in measurements])
    advantages = np.concatenate([view.advantages for view in measurements])
    pooled = _pool_coupling(measurements)
    found: dict[str, Any] = {}
    for sign, shares in shares_by_sign(delta, advantages).items():
        seen = shares and (shares.boosted, shares.suppressed, shares.stable, shares.mean_abs)
        found |= {f"{n}_{sign}": v for n, v in zip(_SIGN_FIELDS, seen or [None] * 4, strict=True)}
    total, own = pooled["total"], pooled["own"]
    gross = np.abs(pooled["positive"]).sum() + np.abs(pooled["negative"]).sum()
    parts = {name: np.abs(pooled[name]).sum() for name in pooled if "_token_" in name}
    equal = sum(mass for name, mass in parts.items() if name.startswith("same_token"))
    counted = (np.abs(delta) > EPSILON) & (total != 0)
    return found | {
        "flipped": float(flipped_tokens(delta, advantages).mean()),
        "cancellation": _ratio(gross - np.abs(total).sum(), gross),
        "cancellation_types": _cancellation_by_type(measurements),
        "own_share": _ratio(np.abs(own).sum(), np.abs(own).sum() + np.abs(total - own).sum()),
        "same_token_share": _ratio(equal, sum(parts.values())),
        "proxy_agreement": _ratio((np.sign(delta) == np.sign(total))[counted].sum(), counted.sum()),
        "shared_prefix_share": _ratio(
            sum(v.shared_prefixes.shared_tokens for v in measurements),
            sum(v.shared_prefixes.step_tokens for v in measurements),
        ),
        "exchangeability": _ratio(
            sum(v.shared_prefixes.net_pull for v in measurements),
            sum(v.shared_prefixes.gross_pull for v in measurements),
        ),
        "learning_tax": _mean_over_steps([v.tax for v in measurements]),
        "solution_drift": _mean_over_steps([v.drift for v in measurements]),
    }


def token_columns(
    measurements: Sequence[StepMeasurement], indices: NDArray[np.int64], table_size: int
) -> dict[str, Floats]:
    """What tokens/ gains: displacement, own, and the eight parts.

    `indices` of the tokens looked at, view after view, in a table of `table_size`; the rest is nan.
    """
    if not measurements:
        return {}
    pooled = _pool_coupling(measurements)
    kept = {"own": pooled["own"], **{name: pooled[name] for name in pooled if "_token_" in name}}
    delta = np.concatenate([view.displacement for view in measurements])
    found = {}
    for name, values in {"displacement": delta, **kept}.items():
        found[name] = np.full(table_size, np.nan, dtype=np.float32)
        found[name][indices] = values
    return found


def push_table(
    measurements: Sequence[StepMeasurement], batch_rows: Sequence[Sequence[int]]
) -> TokenTrace | None:
    """A row for each push on a watched token. `batch_rows[s]` are the batch's rows of view s."""
    tables: dict[str, list[NDArray[np.generic]]] = {
        name: [] for name in ("row", "position", "by_row", "by_position", "push")
    }
    for view, rows in zip(measurements, batch_rows, strict=True):
        if view.pushes is None:
            continue
        row_N = np.repeat(np.asarray(rows, dtype=np.int32), view.lengths)
        position_N = np.concatenate([np.arange(n, dtype=np.int32) for n in view.lengths])
        by, push = view.pushes.sources.numpy(), view.pushes.strengths.numpy()
        at, rank = np.nonzero(push)
        pushed, by = view.watched_tokens[at], by[at, rank]
        tables["row"].append(row_N[pushed])
        tables["position"].append(position_N[pushed])
        tables["by_row"].append(row_N[by])
        tables["by_position"].append(position_N[by])
        tables["push"].append(push[at, rank].astype(np.float32))
    if not tables["row"]:
        return None
    return TokenTrace({name: np.concatenate(parts) for name, parts in tables.items()})


def part_column(part: CouplingPart) -> str:
    """
    Example:
        >>> column(("same", "other", "negative"))
        'same_token_other_query_negative'
    """
    return f"{part[0]}_token_{part[1]}_query_{part[2]}"


def _pool_coupling(views: Sequence[StepMeasurement]) -> dict[str, NDArray[np.float64]]:
    found = []
    for view in views:
        c = view.coupling
        whole = {
            "total": c.total,
            "own": c.self_push,
            "positive": c.positive,
            "negative": c.negative,
        }
        found.append(whole | {part_column(part): values for part, values in c.parts.items()})
    return {
        name: np.concatenate([one[name].double().numpy() for one in found]) for name in found[0]
    }


def _cancellation_by_type(views: Sequence[StepMeasurement]) -> list[list[float]]:
    """[token, cancellation, share of the gross pull] of the heaviest types, pooled over steps."""
    seen, left_U, gross_U = (
        np.concatenate(parts)
        for parts in zip(*(map(np.asarray, v.type_pulls) for v in views), strict=True)
    )
    types, number = np.unique(seen, return_inverse=True)
    left, gross = np.bincount(number, left_U), np.bincount(number, gross_U)
    heaviest = np.argsort(-gross, kind="stable")[:REPORTED_TYPES]
    whole = gross.sum()
    return [
        [int(types[v]), max(0.0, 1 - left[v] / gross[v]), gross[v] / whole]  # rounding: -1e-8
        for v in heaviest
        if gross[v] > 0
    ]


def _mean_over_steps(parts: Sequence[PooledMean]) -> float | None:
    return _ratio(sum(part.total for part in parts), sum(part.terms for part in parts))


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
