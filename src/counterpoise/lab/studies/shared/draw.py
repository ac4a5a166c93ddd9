"""Charts of the shared study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from counterpoise.lab.studies.shared.judge import ARMS, BINNINGS, JUDGED_OPTIMIZER, NodeTable
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import ForestPoint, forest_chart, forest_point
from counterpoise.statistics.finding import Records

ARM_NAMES = {"joint": "joint", "positive_only": "right rollouts only", "shuffled": "shuffled"}


def draw(records: Records) -> tuple[Figure, ...]:
    table = NodeTable(records)
    return _changes(table), _differences(table)


def _changes(table: NodeTable) -> Figure:
    kinds = {"specific to success": table.is_specific, "shared": table.is_shared}
    points = [
        forest_point(ARM_NAMES[arm], kind, table.mean(_changes_of(table, arm), is_member_N))
        for arm in ARMS
        for kind, is_member_N in kinds.items()
    ]
    return _forest_figure(
        points,
        "Shared tokens and tokens specific to success",
        "mean change of log p",
        "Mean change of log p after one AdamW step, 95 % intervals over prompts.",
    )


def _differences(table: NodeTable) -> Figure:
    points = [
        forest_point(
            ARM_NAMES[arm], f"matched {phrase}", table.gap(_changes_of(table, arm), binning)
        )
        for arm in ARMS
        for binning, phrase in BINNINGS.items()
    ]
    return _forest_figure(
        points,
        "The difference, matched",
        "specific minus shared",
        "Specific minus shared among tokens of like probability, and of like frequency in the "
        "batch (by token) or in the group (by node).",
    )


def _changes_of(table: NodeTable, arm: str) -> NDArray[np.float64]:
    return table.column(f"{JUDGED_OPTIMIZER} {arm}")


def _forest_figure(
    points: Sequence[ForestPoint], title: str, axis_title: str, caption: str
) -> Figure:
    first_series, second_series = dict.fromkeys(point["series"] for point in points)
    chart = forest_chart(
        points,
        {first_series: "series", second_series: "soft"},
        axis_title,
        title,
        axis="+.2~f",
        number="+.3f",
        guide=0,
        labels=130,
    )
    return Figure(chart, title, caption, (("series", first_series), ("soft", second_series)))
