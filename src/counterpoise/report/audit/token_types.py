"""The finding about token types that cancel: pushed up and down by about the same amount.

    cancellation of a type = 1 - |sum of pushes| / sum of |pushes|

It is no fault: what right and wrong rollouts share should cancel. The note says where the gradient
goes and how much of it is left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq

from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.records import (
    NEEDS_UPDATE,
    AuditFinding,
    Measurement,
    percent,
    unsupported,
)
from counterpoise.report.charts.render import show_blanks
from counterpoise.report.texts import make_visible
from counterpoise.report.traces import read_vocabulary
from counterpoise.store.parquet_errors import PARQUET_ERRORS

TITLE = "Token types that cancel"
TOP_TYPES = 6
TABLES = 4  # token tables that are read where the monitor was off


def cancelling_types(run: AuditRun) -> AuditFinding:
    """The heaviest token types and how much of their push cancels."""
    weights = _monitored_types(run)
    how = "as the monitor measured it"
    if not weights:
        weights = _pulled_types(run)
        how = "estimated from the gradient at the output, without coupling between tokens"
    if not weights:
        if run.took_no_step:
            return unsupported(TITLE, NEEDS_UPDATE)
        return unsupported(
            TITLE,
            "cancellation_types in metrics.jsonl or tokens/",
            remedy="monitor.every = 1 and store.tokens = true",
        )
    total = sum(share for share, _ in weights.values())
    vocabulary = read_vocabulary(run.path)
    heaviest = sorted(weights, key=lambda token: -weights[token][0])[:TOP_TYPES]
    overall = sum(cancelled for _, cancelled in weights.values()) / total if total else 0.0
    measured = [value for _, value in run.metric("cancellation")]
    overall = float(np.mean(measured)) if measured else overall
    return AuditFinding(
        title=TITLE,
        level="note",
        verdict=f"{percent(overall)} of the push on tokens cancels within a step ({how})",
        measurements=tuple(
            Measurement(
                f"{show_blanks(make_visible(vocabulary[token], 40), alone=True)!r}, "
                f"{percent(weights[token][0] / total, 1)} of the push: cancels",
                weights[token][1] / weights[token][0] if weights[token][0] else 0.0,
                unit="share",
            )
            for token in heaviest
        ),
        threshold="none: cancellation is what whole groups are for",
        cost=f"{percent(1 - overall)} of the push is left to move the policy",
        remedy='credit.weights = "cancellation" gives less weight to tokens that cancel',
    )


def _monitored_types(run: AuditRun) -> dict[int, tuple[float, float]]:
    """token -> (share of the push, cancelled share), summed over iterations."""
    weights: dict[int, tuple[float, float]] = {}
    for record in run.metrics:
        for token, cancellation, share in record.get("cancellation_types") or ():
            old_share, old_cancelled = weights.get(int(token), (0.0, 0.0))
            weights[int(token)] = (old_share + share, old_cancelled + share * cancellation)
    return weights


def _pulled_types(run: AuditRun) -> dict[int, tuple[float, float]]:
    """The same from the pulls of the last token tables."""
    weights: dict[int, tuple[float, float]] = {}
    for path in list(run.token_files.values())[-TABLES:]:
        try:
            table: Any = pq.read_table(path, columns=["step", "token", "pull"])
        except PARQUET_ERRORS:
            continue
        step_N, token_N, pull_N = (table[name].to_numpy() for name in ("step", "token", "pull"))
        for step in np.unique(step_N):
            in_step = step_N == step
            types, inverse_N = np.unique(token_N[in_step], return_inverse=True)
            gross = np.bincount(inverse_N, weights=np.abs(pull_N[in_step]))
            net = np.abs(np.bincount(inverse_N, weights=pull_N[in_step]))
            for token, total, net_push in zip(types.tolist(), gross, net, strict=True):
                old_share, old_cancelled = weights.get(token, (0.0, 0.0))
                weights[token] = (old_share + total, old_cancelled + total - net_push)
    return {token: pair for token, pair in weights.items() if pair[0] > 0}
