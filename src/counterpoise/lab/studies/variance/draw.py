"""Charts of the variance study (Sec. 3.1)."""

from __future__ import annotations

import numpy as np

from counterpoise.lab.studies.variance.judge import (
    COMPOSERS,
    CutStatistics,
    cross_term_interval,
    signal_numbers,
)
from counterpoise.microscope.variance import CUTS
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.statistics.finding import Records

COLOURS = {"shared": "ink", "token": "soft", "success": "positive"}


def draw(records: Records) -> tuple[Figure, ...]:
    return _noise_figure(records), _plan_figure(records), _filter_figure(records)


def _noise_figure(records: Records) -> Figure:
    points = []
    for cut in (*CUTS, *COMPOSERS):
        for direction in COLOURS:
            statistics = CutStatistics(records, direction, cut)
            all_once = np.ones(len(statistics.prompts))
            row_label = f"{cut}, C = {statistics.cross_term(all_once):+.2f}"
            noise_interval = statistics.interval(statistics.factor)
            expected = statistics.predicted(all_once)
            points.append(forest_point(row_label, direction, noise_interval, expected))
    layered_chart = forest_chart(
        points,
        COLOURS,
        "variance of the update over that of independent rollouts",
        "Noise of the update by how groups are cut, along three directions",
        zero=True,
        guide=1.0,
        labels=170,
    )
    legend_entries = tuple(
        (style, f"{direction_name} direction") for direction_name, style in COLOURS.items()
    )
    return Figure(
        layered_chart,
        "Noise of an update by how groups are cut",
        "Advantages shuffled within groups. C: the term of eq. 14 over the sum of squares; "
        "ticks: the closed form, 1 + rho C. First parts of single groups, then composers with four "
        "steps. Bars: 95 % over prompts.",
        (*legend_entries, ("muted", "independent rollouts")),
        wide=True,
    )


def _plan_figure(records: Records) -> Figure:
    steps = [record for record in records if record["panel"] == "plan" and record["squares"]]
    points = [
        forest_point(composer, "mean", cross_term_interval(records, composer))
        for composer in COMPOSERS
    ]
    points += [
        forest_point(record["cut"], "step", (record["cross"] / record["squares"], None, None))
        for record in steps
    ]
    layered_chart = forest_chart(
        points,
        {"mean": "ink", "step": "soft"},
        "cross-advantage term over sum of squares",
        "Eq. 14 by composer",
        zero=True,
        guide=0.0,
    )
    return Figure(
        layered_chart,
        "Eq. 14 by composer",
        "-1: whole groups, whatever is shared cancels. 0: as if every rollout had its own prompt.",
        (("ink", "mean over plans, with 95 % interval"), ("soft", "the four steps of one plan")),
    )


def _filter_figure(records: Records) -> Figure:
    points = []
    for number in signal_numbers(records):
        _, direction, label = number.name.split(", ")
        points.append(forest_point(direction, label, (number.value, number.low, number.high)))
    layered_chart = forest_chart(
        points,
        {"joint": "ink", "right only": "positive"},
        "mean update over its root mean square",
        "Signal over noise of the update along three directions",
        zero=True,
        guide=0.0,
        labels=60,
    )
    return Figure(
        layered_chart,
        "What survives the filter",
        "The filter: advantages that sum to 0 take out what a group's right and wrong rollouts "
        "have in common. How far the updates of single prompts agree, with true advantages; 95 % "
        "over prompts.",
        (("ink", "joint update"), ("positive", "right rollouts only")),
    )
