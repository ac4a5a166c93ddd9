"""The monitor's measurements of one iteration as metrics and tables.

    flipped            share of tokens that moved against their own advantage
    cancellation       1 - sum_j |total_j| / sum_j (|positive_j| + |negative_j|)
    own_share          sum |self push| / (sum |self push| + sum |push of other tokens|)
    same_token_share   share of equal tokens in the absolute mass of all coupling parts
    proxy_agreement    share of tokens whose displacement has the sign the output layer predicts
    exchangeability    the exchangeability residual: |sum A w| / sum |A| w on the prefixes that
                       rollouts of a group share; 0 when their pulls cancel, 1 when none does
    learning_tax       change of the policy where it should not change: mean KL(new || old), in
                       nats, at tokens that right and wrong rollouts share
    solution_drift     mean absolute change of the log-odds between right answers of one query
    lazy_likelihood    share of rollouts with A > 0 whose own log-probability did not rise

Steps are measured one by one, because tokens of different steps cannot cancel; their tokens are
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
from counterpoise.store.schema import LIKELY_COLUMNS, MONITOR_METRICS, PUSH_COLUMNS
from counterpoise.types import Floats, TokenTrace

REPORTED_TYPES = 12  # how many token types are reported: those with the largest pull
_SIGN_FIELDS = ("boosted", "suppressed", "stable", "moved")
METRIC_NAMES = tuple(MONITOR_METRICS)


def monitor_metrics(measurements: Sequence[StepMeasurement]) -> dict[str, Any]:
    """The monitor's fields of metrics.jsonl; None where nothing was measured."""
    if not measurements:
        return dict.fromkeys(METRIC_NAMES)
    delta_n = np.concatenate([measurement.displacement for measurement in measurements])
    advantages = np.concatenate([measurement.advantages for measurement in measurements])
    pooled = _pool_coupling(measurements)
    metrics: dict[str, Any] = {}
    for sign, shares in shares_by_sign(delta_n, advantages).items():
        values = shares and (shares.boosted, shares.suppressed, shares.stable, shares.mean_abs)
        metrics |= {
            f"{field}_{sign}": value
            for field, value in zip(_SIGN_FIELDS, values or [None] * 4, strict=True)
        }
    total_push, self_push = pooled["total"], pooled["self_push"]
    gross = np.abs(pooled["positive"]).sum() + np.abs(pooled["negative"]).sum()
    part_mass = {name: np.abs(pooled[name]).sum() for name in pooled if "_token_" in name}
    same_token_mass = sum(mass for name, mass in part_mass.items() if name.startswith("same_token"))
    # The sign of a stable token is only rounding, so agreement is counted without stable tokens.
    has_direction = (np.abs(delta_n) > EPSILON) & (total_push != 0)
    return metrics | {
        "flipped": _ratio(flipped_tokens(delta_n, advantages).sum(), (~np.isnan(delta_n)).sum()),
        "cancellation": _ratio(gross - np.abs(total_push).sum(), gross),
        "cancellation_types": _cancellation_by_type(measurements),
        "own_share": _ratio(
            np.abs(self_push).sum(), np.abs(self_push).sum() + np.abs(total_push - self_push).sum()
        ),
        "same_token_share": _ratio(same_token_mass, sum(part_mass.values())),
        "proxy_agreement": _ratio(
            (np.sign(delta_n) == np.sign(total_push))[has_direction].sum(), has_direction.sum()
        ),
        "shared_prefix_share": _ratio(
            sum(measurement.shared_prefixes.shared_tokens for measurement in measurements),
            sum(measurement.shared_prefixes.step_tokens for measurement in measurements),
        ),
        "exchangeability": _ratio(
            sum(measurement.shared_prefixes.net_pull for measurement in measurements),
            sum(measurement.shared_prefixes.gross_pull for measurement in measurements),
        ),
        "learning_tax": _mean_over_steps([measurement.tax for measurement in measurements]),
        "solution_drift": _mean_over_steps([measurement.drift for measurement in measurements]),
        "lazy_likelihood": _mean_over_steps([measurement.lazy for measurement in measurements]),
    }


def token_columns(
    measurements: Sequence[StepMeasurement], indices: NDArray[np.int64], table_size: int
) -> dict[str, Floats]:
    """Columns for tokens/: displacement, own (the self push), and the eight coupling parts.

    `indices` are the rows of the measured tokens, step after step, in a table of `table_size`
    tokens; all other entries are nan.
    """
    if not measurements:
        return {}
    pooled = _pool_coupling(measurements)
    coupling_columns = {
        "own": pooled["self_push"],
        **{name: pooled[name] for name in pooled if "_token_" in name},
    }
    delta_n = np.concatenate([measurement.displacement for measurement in measurements])
    columns = {}
    for name, values in {"displacement": delta_n, **coupling_columns}.items():
        columns[name] = np.full(table_size, np.nan, dtype=np.float32)
        columns[name][indices] = values
    return columns


def push_table(
    measurements: Sequence[StepMeasurement], batch_rows: Sequence[Sequence[int]]
) -> TokenTrace | None:
    """A table row for each push on a watched token; `batch_rows[s]`: the batch rows of step s."""
    tables: dict[str, list[NDArray[np.generic]]] = {name: [] for name in PUSH_COLUMNS}
    for measurement, rows in zip(measurements, batch_rows, strict=True):
        if measurement.pushes is None:
            continue
        row_N, position_N = _token_places(measurement, rows)
        source_index = measurement.pushes.sources.numpy()
        strength = measurement.pushes.strengths.numpy()
        # Unused slots have strength 0; nonzero drops them.
        watched_index, slot = np.nonzero(strength)
        pushed = measurement.watched_tokens[watched_index]
        source_index = source_index[watched_index, slot]
        tables["row"].append(row_N[pushed])
        tables["position"].append(position_N[pushed])
        tables["by_row"].append(row_N[source_index])
        tables["by_position"].append(position_N[source_index])
        tables["push"].append(strength[watched_index, slot].astype(np.float32))
    if not tables["row"]:
        return None
    return TokenTrace({name: np.concatenate(chunks) for name, chunks in tables.items()})


def likely_table(
    measurements: Sequence[StepMeasurement], batch_rows: Sequence[Sequence[int]]
) -> TokenTrace | None:
    """Table rows for the likeliest tokens in the place of each watched token, likeliest first."""
    tables: dict[str, list[NDArray[np.generic]]] = {name: [] for name in LIKELY_COLUMNS}
    for measurement, rows in zip(measurements, batch_rows, strict=True):
        likely = measurement.likely
        if likely is None:
            continue
        row_N, position_N = _token_places(measurement, rows)
        watched_tokens = np.repeat(measurement.watched_tokens, likely.tokens.shape[1])
        tables["row"].append(row_N[watched_tokens])
        tables["position"].append(position_N[watched_tokens])
        tables["token"].append(likely.tokens.numpy().astype(np.int32).ravel())
        tables["logprob"].append(likely.logprobs.numpy().astype(np.float32).ravel())
        tables["new_logprob"].append(likely.new_logprobs.numpy().astype(np.float32).ravel())
    if not tables["row"]:
        return None
    return TokenTrace({name: np.concatenate(chunks) for name, chunks in tables.items()})


def _token_places(
    measurement: StepMeasurement, rows: Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(row of the batch, position in the response) of every token of a step: [N] each."""
    row_N = np.repeat(np.asarray(rows, dtype=np.int32), measurement.lengths)
    positions = [np.arange(length, dtype=np.int32) for length in measurement.lengths]
    return row_N, np.concatenate(positions)


def part_column(part: CouplingPart) -> str:
    """The column name of a coupling part.

    Example:
        >>> part_column(("same", "other", "negative"))
        'same_token_other_query_negative'
    """
    return f"{part[0]}_token_{part[1]}_query_{part[2]}"


def _pool_coupling(measurements: Sequence[StepMeasurement]) -> dict[str, NDArray[np.float64]]:
    columns_of_steps = []
    for measurement in measurements:
        coupling = measurement.coupling
        summary = {
            "total": coupling.total,
            "self_push": coupling.self_push,
            "positive": coupling.positive,
            "negative": coupling.negative,
        }
        columns_of_steps.append(
            summary | {part_column(part_key): values for part_key, values in coupling.parts.items()}
        )
    return {
        name: np.concatenate([columns[name].double().numpy() for columns in columns_of_steps])
        for name in columns_of_steps[0]
    }


def _cancellation_by_type(measurements: Sequence[StepMeasurement]) -> list[list[float]]:
    """[token, cancellation, share of gross pull] of the types with most pull, over all steps."""
    type_ids, net_U, gross_U = (
        np.concatenate(columns)
        for columns in zip(
            *(map(np.asarray, measurement.type_pulls) for measurement in measurements), strict=True
        )
    )
    distinct_types, type_number = np.unique(type_ids, return_inverse=True)
    net_pull, gross_pull = np.bincount(type_number, net_U), np.bincount(type_number, gross_U)
    heaviest = np.argsort(-gross_pull, kind="stable")[:REPORTED_TYPES]
    total_pull = gross_pull.sum()
    # Rounding can make net slightly larger than gross, hence the clamp at 0.
    return [
        [
            int(distinct_types[index]),
            max(0.0, 1 - net_pull[index] / gross_pull[index]),
            gross_pull[index] / total_pull,
        ]
        for index in heaviest
        if gross_pull[index] > 0
    ]


def _mean_over_steps(means: Sequence[PooledMean]) -> float | None:
    return _ratio(sum(mean.total for mean in means), sum(mean.terms for mean in means))


def _ratio(numerator: float, denominator: float) -> float | None:
    return float(numerator / denominator) if denominator else None
