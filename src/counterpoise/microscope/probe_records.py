"""The probe measurements of one iteration as metrics and tables.

probe_right        mean over the right held-out answers of their change of log-probability
probe_wrong        the same of the wrong ones
probe_correlation  rank correlation between the predicted and the real change of each answer in the
                   iteration, both divided by the answer's number of tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.microscope.probe_monitor import (
    ANSWER_SETS,
    STEER,
    ProbeAnswer,
    ProbeMeasurement,
)
from counterpoise.statistics.ranks import rank_correlations
from counterpoise.store.schema import (
    GRADIENT_PUSH_COLUMN,
    PROBE_COLUMNS,
    PROBE_PUSH_COLUMNS,
    PROBE_ROW_COLUMNS,
    Fields,
)
from counterpoise.types import Floats, StepResult, TokenTrace

ANSWER_SET_COLUMNS = tuple(f"probe_{kind}_{half}" for kind, half in ANSWER_SETS)
MIN_ANSWERS = 3  # below this a rank correlation says nothing


def probe_metrics(
    answers: Sequence[ProbeAnswer],
    measurement: ProbeMeasurement | None,
    results: Sequence[StepResult] | Mapping[int, StepResult],  # by step of the plan
) -> dict[str, Any]:
    """The fields of metrics.jsonl that probes add."""
    if measurement is None:
        return dict.fromkeys(("probe_right", "probe_wrong", "probe_correlation"))
    lengths = [answer.row.num_tokens for answer in answers]
    moved_Q = sum_by_answer(measurement.displacement, lengths)
    rates_R = np.array([results[step].learning_rate or 0.0 for step in measurement.steps])
    predicted_Q = rates_R @ measurement.influence_RQ.astype(np.float64)
    is_right_Q = np.array([answer.right for answer in answers], dtype=bool)
    correlation = None
    if len(answers) >= MIN_ANSWERS:
        weights = np.ones((1, len(answers)))
        value = rank_correlations(predicted_Q / lengths, moved_Q / lengths, weights)[0]
        correlation = float(value) if np.isfinite(value) else None
    return {
        "probe_right": _mean(moved_Q[is_right_Q]),
        "probe_wrong": _mean(moved_Q[~is_right_Q]),
        "probe_correlation": correlation,
    }


def steering_influence(
    answers: Sequence[ProbeAnswer],
    measurement: ProbeMeasurement | None,
    prompts: Sequence[str],
) -> dict[str, float]:
    """Push of each training prompt's rows on the probe answers of the steering half.

    It is the mean push on the right answers minus the mean push on the wrong ones. `prompts` are
    those of the measurement's rows.
    """
    steering = [index for index, answer in enumerate(answers) if answer.half == STEER]
    if measurement is None or not steering:
        return {}
    pushes_R = np.zeros(len(prompts))
    for is_right, sign in ((True, 1.0), (False, -1.0)):
        members = [index for index in steering if answers[index].right == is_right]
        if members:
            pushes_R += sign * measurement.influence_RQ[:, members].mean(axis=1, dtype=np.float64)
    influence: dict[str, float] = {}
    for prompt, push in zip(prompts, pushes_R.tolist(), strict=True):
        influence[prompt] = influence.get(prompt, 0.0) + push
    return influence


def probe_tables(
    answers: Sequence[ProbeAnswer], measurement: ProbeMeasurement, batch_rows: Sequence[int]
) -> dict[str, TokenTrace]:
    """The tables of probes/, probe_rows/ and probe_pushes/ by folder.

    `batch_rows` are the indices in the batch of the measurement's rows.
    """
    step_R = np.array(measurement.steps, dtype=np.int16)
    row_R = np.array(batch_rows, dtype=np.int32)
    R, Q = measurement.by_row_RQ.shape
    strongest = measurement.strongest
    row_columns: tuple[NDArray[np.generic], ...] = (
        np.repeat(step_R, Q),
        np.repeat(row_R, Q),
        np.tile(np.arange(Q, dtype=np.int32), R),
        measurement.by_row_RQ.ravel(),
    )
    row_fields = PROBE_ROW_COLUMNS
    if measurement.gradient_RQ is not None:
        row_columns = (*row_columns, measurement.gradient_RQ.ravel())
        row_fields = {**PROBE_ROW_COLUMNS, **GRADIENT_PUSH_COLUMN}
    values_by_folder: dict[str, tuple[Fields, tuple[NDArray[np.generic], ...]]] = {
        "probes": (PROBE_COLUMNS, _token_values(answers, measurement)),
        "probe_rows": (row_fields, row_columns),
        "probe_pushes": (
            PROBE_PUSH_COLUMNS,
            (
                step_R[strongest.rows],
                strongest.answers,
                row_R[strongest.rows],
                strongest.positions,
                strongest.pushes,
            ),
        ),
    }
    return {
        folder: TokenTrace(dict(zip(names, values, strict=True)))
        for folder, (names, values) in values_by_folder.items()
    }


def answer_set_columns(
    measurement: ProbeMeasurement, token_indices: NDArray[np.int64], table_size: int
) -> dict[str, Floats]:
    """Columns for tokens/: each trained token's push on an answer, mean over those of each set.

    `token_indices` are the places of the measurement's tokens in a table of `table_size` tokens;
    all other entries are nan.
    """
    columns = {name: np.full(table_size, np.nan, dtype=np.float32) for name in ANSWER_SET_COLUMNS}
    for name, pushes_N in zip(ANSWER_SET_COLUMNS, measurement.on_sets_NC.T, strict=True):
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
    """The columns of probes/, in the order of PROBE_COLUMNS."""
    lengths = [answer.row.num_tokens for answer in answers]
    tokens = [answer.row.content.response_tokens for answer in answers]
    return (
        np.repeat(np.arange(len(answers), dtype=np.int32), lengths),
        np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        np.concatenate(tokens),
        measurement.logprobs,
        measurement.displacement,
        *measurement.signed_J2.T,
        *measurement.same_token_J2.T,
    )


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None
