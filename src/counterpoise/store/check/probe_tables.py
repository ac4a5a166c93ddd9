"""Check that the tables of probes agree with probes.jsonl, with the plan, and with each other.

probes/         the tokens of the probe answers that the iteration tracks
probe_rows/     every pair of a trained row and an answer; the pushes of the rows on an
                answer add up to the pushes on its tokens
probe_pushes/   rows of the plan and answers of probes.jsonl
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from counterpoise.store.schema import PROBE_COLUMNS, PROBE_PUSH_COLUMNS, PROBE_ROW_COLUMNS
from counterpoise.types import Columns

PROBE_TABLES: dict[str, Mapping[str, str]] = {
    "probes": PROBE_COLUMNS,
    "probe_rows": PROBE_ROW_COLUMNS,
    "probe_pushes": PROBE_PUSH_COLUMNS,
}
# Of the largest sum: a run adds up rows and tokens in float32, in different orders.
SUM_TOLERANCE = 1e-3
Answers = list[dict[str, Any]]


def tracked_answers(lines: Mapping[int, dict[str, Any]], iteration: int) -> Answers | None:
    """The probe answers that `iteration` tracks: those of the last line of probes.jsonl by then."""
    newest = max((number for number in lines if number <= iteration), default=None)
    return None if newest is None else lines[newest]["answers"]


def find_probe_problems(
    tables: Mapping[str, Columns], answers: Answers, plan: dict[str, Any] | None
) -> list[tuple[str, str]]:
    """(folder, problem) for everything that does not fit."""
    problems = []
    for folder, columns in tables.items():
        answer_N = columns["answer"]
        if len(answer_N) and (answer_N.min() < 0 or answer_N.max() >= len(answers)):
            problems.append((folder, "holds answers that probes.jsonl lacks"))
        elif plan is not None and "steps" in plan and not _rows_fit(columns, plan):
            problems.append((folder, "holds rows or steps that its plan lacks"))
    if problems:
        return problems
    if "probes" in tables and not _tokens_fit(tables["probes"], answers):
        problems.append(("probes", "has other tokens than probes.jsonl"))
    elif {"probes", "probe_rows"} <= tables.keys() and not _sums_fit(tables, len(answers)):
        problems.append(("probe_rows", "does not add up to the pushes of probes/"))
    elif not np.isfinite(tables.get("probe_rows", {}).get("gradient_push", 0.0)).all():
        problems.append(("probe_rows", "holds numbers that are not finite"))
    return problems


def _rows_fit(columns: Columns, plan: dict[str, Any]) -> bool:
    """Whether every step is one of the plan's, and every row one of its step's."""
    step_of_row = np.full(len(plan["group"]), -1)
    for step_number, step in enumerate(plan["steps"]):
        step_of_row[step] = step_number
    if "row" not in columns:
        return True
    if (columns["step"] < 0).any() or (columns["step"] >= len(plan["steps"])).any():
        return False
    rows = columns["row"].astype(np.int64)
    if (rows < 0).any() or (rows >= len(step_of_row)).any():
        return False
    return bool((step_of_row[rows] == columns["step"]).all())


def _tokens_fit(columns: Columns, answers: Answers) -> bool:
    tokens = np.concatenate([answer["response_tokens"] for answer in answers])
    return np.array_equal(columns["token"], tokens)


def _sums_fit(tables: Mapping[str, Columns], num_answers: int) -> bool:
    sums = []
    for folder, names in (("probes", ("positive", "negative")), ("probe_rows", ("push",))):
        columns = tables[folder]
        pushes = sum(columns[name].astype(np.float64) for name in names)
        sums.append(np.bincount(columns["answer"], pushes, num_answers))
    tolerance = SUM_TOLERANCE * max(1e-12, float(np.abs(sums[0]).max(initial=0)))
    return bool(np.allclose(sums[0], sums[1], rtol=0, atol=tolerance))
