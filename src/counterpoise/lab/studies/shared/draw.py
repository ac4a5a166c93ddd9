"""Charts of the shared study."""

from __future__ import annotations

from counterpoise.lab.studies.shared.judge import ARMS, BINNINGS, JUDGED_OPTIMIZER, PlaceTable
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.finding import Records

ARM_NAMES = {"joint": "joint", "positive_only": "right rollouts only", "shuffled": "shuffled"}


def draw(records: Records) -> tuple[Figure, ...]:
    table = PlaceTable(records)
    return _changes(table), _differences(table)


def _changes(table: PlaceTable) -> Figure:
    kinds = {"specific to success": table.is_specific, "shared": table.is_shared}
    points = [
        forest_point(
            ARM_NAMES[arm], kind, table.mean(table.column(f"{JUDGED_OPTIMIZER} {arm}"), is_member_N)
        )
        for arm in ARMS
        for kind, is_member_N in kinds.items()
    ]
    chart = forest_chart(
        points,
        {"specific to success": "series", "shared": "soft"},
        "mean change of log p",
        "Mean change of tokens that only right rollouts have, and of tokens that wrong ones share",
        axis="+.2~f",
        number="+.3f",
        guide=0,
        labels=130,
    )
    return Figure(
        chart,
        "Shared tokens and tokens specific to success",
        "Mean change of log p after one AdamW step, 95 % intervals over prompts.",
        (("series", "specific to success"), ("soft", "shared")),
    )


def _differences(table: PlaceTable) -> Figure:
    points = [
        forest_point(
            ARM_NAMES[arm],
            phrase,
            table.gap(table.column(f"{JUDGED_OPTIMIZER} {arm}"), binning),
        )
        for arm in ARMS
        for binning, phrase in BINNINGS.items()
    ]
    chart = forest_chart(
        points,
        {"by token": "series", "by place": "soft"},
        "specific minus shared",
        "Difference of the two kinds of tokens, matched by probability and frequency",
        axis="+.2~f",
        number="+.3f",
        guide=0,
        labels=130,
    )
    return Figure(
        chart,
        "The difference, matched",
        "Specific minus shared among tokens of like probability, and of like frequency in the "
        "batch (by token) or in the group (by place).",
        (("series", "matched by token"), ("soft", "matched by place")),
    )
