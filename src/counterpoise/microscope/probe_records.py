"""The probe measurements of one iteration as metrics and tables.

probe_right        mean over the right held-out answers of their change of log-probability
probe_wrong        the same of the wrong ones
probe_correlation  rank correlation over the answers of the predicted and the real change of
                   each, both divided by the answer's tokens and summed over the steps
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.microscope.probe_monitor import ANSWER_SETS, ProbeAnswer, ProbeMeasurement
from counterpoise.statistics.ranks import rank_correlations
from counterpoise.store.schema import PROBE_COLUMNS, PROBE_PUSH_COLUMNS, PROBE_ROW_COLUMNS
from counterpoise.types import Floats, StepResult, TokenTrace

SET_COLUMNS = tuple(f"probe_{kind}_{half}" for kind, half in ANSWER_SETS)
MIN_ANSWERS = 3  # below this a rank correlation says nothing
Columns = dict[str, list[NDArray[np.generic]]]


def probe_metrics(
    answers: Sequence[ProbeAnswer],
    measurements: Sequence[ProbeMeasurement],
    results: Sequence[StepResult],
) -> dict[str, Any]:
    """The fields of metrics.jsonl that probes add."""
    moved_Q, predicted_Q = np.zeros(len(answers)), np.zeros(len(answers))
    lengths = [answer.row.num_tokens for answer in answers]
    for measurement in measurements:
        moved_Q += sum_by_answer(measurement.displacement, lengths)
        rate = results[measurement.step].learning_rate or 0.0
        predicted_Q += rate * measurement.by_row_RQ.sum(axis=0, dtype=np.float64)
    is_right_Q = np.array([answer.right for answer in answers], dtype=bool)
    correlation = None
    if measurements and len(answers) >= MIN_ANSWERS:
        weights = np.ones((1, len(answers)))
        value = rank_correlations(predicted_Q / lengths, moved_Q / lengths, weights)[0]
        correlation = float(value) if np.isfinite(value) else None
    return {
        "probe_right": _mean(moved_Q[is_right_Q]) if measurements else None,
        "probe_wrong": _mean(moved_Q[~is_right_Q]) if measurements else None,
        "probe_correlation": correlation,
    }


def probe_tables(
    answers: Sequence[ProbeAnswer],
    measurements: Sequence[ProbeMeasurement],
    batch_rows: Sequence[Sequence[int]],
) -> dict[str, TokenTrace]:
    """The tables of probes/, probe_rows/ and probe_pushes/ by folder.

    `batch_rows[s]` are the batch rows of measurement s.
    """
    tables: dict[str, Columns] = {
        "probes": {name: [] for name in PROBE_COLUMNS},
        "probe_rows": {name: [] for name in PROBE_ROW_COLUMNS},
        "probe_pushes": {name: [] for name in PROBE_PUSH_COLUMNS},
    }
    for measurement, rows in zip(measurements, batch_rows, strict=True):
        step = np.int16(measurement.step)
        row_R = np.array(rows, dtype=np.int32)
        _append(tables["probes"], _token_values(answers, measurement))
        R, Q = measurement.by_row_RQ.shape
        _append(
            tables["probe_rows"],
            (
                np.full(R * Q, step),
                np.repeat(row_R, Q),
                np.tile(np.arange(Q, dtype=np.int32), R),
                measurement.by_row_RQ.ravel(),
            ),
        )
        strongest = measurement.strongest
        _append(
            tables["probe_pushes"],
            (
                np.full(len(strongest.answers), step),
                strongest.answers,
                row_R[strongest.rows],
                strongest.positions,
                strongest.pushes,
            ),
        )
    return {
        folder: TokenTrace({name: np.concatenate(chunks) for name, chunks in columns.items()})
        for folder, columns in tables.items()
        if measurements
    }


def set_columns(
    measurements: Sequence[ProbeMeasurement], indices: Sequence[NDArray[np.int64]], table_size: int
) -> dict[str, Floats]:
    """Columns for tokens/: the push of every trained token on the answers of each set.

    `indices[s]` are the places of the tokens of measurement s in a table of `table_size` tokens;
    all other entries are nan.
    """
    if not measurements:
        return {}
    columns = {name: np.full(table_size, np.nan, dtype=np.float32) for name in SET_COLUMNS}
    for measurement, token_indices in zip(measurements, indices, strict=True):
        for name, pushes_N in zip(SET_COLUMNS, measurement.on_sets_NC.T, strict=True):
            columns[name][token_indices] = pushes_N
    return columns


def sum_by_answer(values_J: Floats, lengths: Sequence[int]) -> NDArray[np.float64]:
    """The sum of the values of each answer's tokens: [Q].

    Example:
        >>> sum_by_answer(np.array([1.0, 2.0, 4.0], np.float32), [1, 2]).tolist()
        [1.0, 6.0]
    """
    answer_J = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(answer_J, values_J, len(lengths)).astype(np.float64)


def _token_values(
    answers: Sequence[ProbeAnswer], measurement: ProbeMeasurement
) -> tuple[NDArray[np.generic], ...]:
    """The columns of probes/ of one step, in the order of PROBE_COLUMNS."""
    lengths = [answer.row.num_tokens for answer in answers]
    tokens = [answer.row.content.response_tokens for answer in answers]
    return (
        np.full(sum(lengths), np.int16(measurement.step)),
        np.repeat(np.arange(len(answers), dtype=np.int32), lengths),
        np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        np.concatenate(tokens),
        measurement.logprobs,
        measurement.displacement,
        *measurement.signed_J2.T,
        *measurement.same_token_J2.T,
    )


def _append(columns: Columns, values: Sequence[NDArray[np.generic]]) -> None:
    for chunks, column in zip(columns.values(), values, strict=True):
        chunks.append(column)


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None
