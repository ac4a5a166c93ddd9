"""Charts of the arm studies: results, differences and learning curves."""

from __future__ import annotations

from statistics import fmean

import altair as alt

from counterpoise.lab.experiments.compare import compare
from counterpoise.lab.experiments.curves import Runs, arm_names, group_by_run, learning_rates
from counterpoise.lab.studies.arms import BASELINE, SIDE_METRICS, final_success, side_metric
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.report.charts.series import base_chart, moving_average
from counterpoise.statistics.finding import Record, Records

COLOURS = ("series", "negative")  # by learning rate, from the smallest, in turn
DASHES = ([1, 0], [5, 3])


def draw(records: Records) -> tuple[Figure, ...]:
    runs = group_by_run(records)
    return (
        _results_figure(runs),
        _differences_figure(runs),
        *(_curves_figure(runs, arm) for arm in arm_names(runs) if arm != BASELINE),
        *(
            _side_metric_figure(runs, metric_name)
            for metric_name in ("cancellation", "largest_sum")
        ),
    )


def _results_figure(runs: Runs) -> Figure:
    styles = _rate_styles(runs)
    points = [
        forest_point(arm, f"lr {rate:g}", (success.value, success.low, success.high))
        for arm in arm_names(runs)
        for rate in learning_rates(runs)
        for success in [final_success(runs, arm, rate)]
    ]
    layered_chart = forest_chart(
        points,
        styles,
        title="held-out success",
        description="Held-out success after training, by arm",
        axis="%",
        number=".1%",
    )
    seed_count = final_success(runs, BASELINE, learning_rates(runs)[0]).n
    note = f"Mean of {seed_count} seeds with its 95 % interval (Student's t), at equal rollouts."
    return Figure(layered_chart, "After training", note, _keys(styles))


def _differences_figure(runs: Runs) -> Figure:
    points, styles = [], {}
    for rate_index, rate in enumerate(learning_rates(runs)):
        for cost, colours in (("rollouts", ("ink", "negative")), ("updates", ("soft", "muted"))):
            series = f"equal {cost}" + (f", lr {rate:g}" if len(learning_rates(runs)) > 1 else "")
            styles[series] = colours[rate_index % len(colours)]
            for arm in arm_names(runs):
                if arm != BASELINE:
                    mean = getattr(compare(runs, arm, BASELINE)[rate_index], cost)
                    points.append(forest_point(arm, series, (mean.value, mean.low, mean.high)))
    layered_chart = forest_chart(
        points,
        styles,
        title=f"success minus {BASELINE}",
        description="Success against shuffled, paired by seed",
        axis="+%",
        number="+.1%",
        zero=True,
        guide=0.0,
    )
    note = "Paired by seed; the intervals hold for all learning rates together."
    return Figure(layered_chart, "Against shuffled", note, _keys(styles))


def _curves_figure(runs: Runs, arm: str) -> Figure:
    """Training success, smoothed, with the range of the seeds; held-out success as points."""
    layers: list[alt.Chart] = []
    axis = alt.Axis(title="rollouts sampled", tickCount=5)
    x_axis = alt.X("rollouts:Q", axis=axis, scale=alt.Scale(nice=False))
    y_axis = alt.Y("value:Q", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    for rate_index, rate in enumerate(learning_rates(runs)):
        for shown_arm, colour in ((BASELINE, "soft"), (arm, COLOURS[rate_index % len(COLOURS)])):
            band_chart = base_chart(_seed_band(runs, shown_arm, rate))
            heldout_chart = base_chart(_heldout_points(runs, shown_arm, rate))
            layers += [
                band_chart.mark_area(style=colour, opacity=0.18).encode(
                    x=x_axis, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")
                ),
                band_chart.mark_line(
                    style=colour, strokeDash=DASHES[rate_index % len(DASHES)]
                ).encode(x=x_axis, y=y_axis),
                heldout_chart.mark_point(style=colour, size=40).encode(x=x_axis, y=y_axis),
            ]
    layered = alt.LayerChart(
        layer=layers, width="container", height=170, description=f"Learning curves of {arm}"
    )
    legend_entries = [
        (COLOURS[index % len(COLOURS)], f"{arm}, lr {rate:g}")
        for index, rate in enumerate(learning_rates(runs))
    ]
    note = "Training success, smoothed, mean and range of the seeds; points: held-out success."
    return Figure(layered, arm, note, (*legend_entries, ("soft", BASELINE)))


def _seed_band(runs: Runs, arm: str, rate: float) -> list[Record]:
    records_by_seed: dict[int, list[Record]] = {}
    for record in _run_records(runs, arm, rate):
        if record["success"] is not None:
            records_by_seed.setdefault(record["seed"], []).append(record)
    smoothed_by_seed = {
        seed: moving_average([record["success"] for record in seed_records])[0]
        for seed, seed_records in records_by_seed.items()
    }
    band_points = []
    # All seeds have the same iterations, so the first one gives the x values.
    for index, first_record in enumerate(next(iter(records_by_seed.values()))):
        values = [values[index] for values in smoothed_by_seed.values()]
        band_points.append(
            {
                "rollouts": first_record["rollouts"],
                "value": fmean(values),
                "low": min(values),
                "high": max(values),
            }
        )
    return band_points


def _heldout_points(runs: Runs, arm: str, rate: float) -> list[Record]:
    values_by_rollouts: dict[int, list[float]] = {}
    for record in _run_records(runs, arm, rate):
        if record["heldout"] is not None:
            values_by_rollouts.setdefault(record["rollouts"], []).append(record["heldout"])
    return [
        {"rollouts": rollouts, "value": fmean(values)}
        for rollouts, values in values_by_rollouts.items()
    ]


def _run_records(runs: Runs, arm: str, rate: float) -> list[Record]:
    return [
        record
        for run_key, curve in runs.items()
        if (run_key.arm, run_key.rate) == (arm, rate)
        for record in curve
    ]


def _side_metric_figure(runs: Runs, metric_name: str) -> Figure:
    styles = _rate_styles(runs)
    points = [
        forest_point(arm, f"lr {rate:g}", seed_range)
        for arm in arm_names(runs)
        for rate in learning_rates(runs)
        if (seed_range := side_metric(runs, arm, rate, metric_name))
    ]
    label = SIDE_METRICS[metric_name][0]
    layered_chart = forest_chart(points, styles, label, f"{label} by arm", zero=True)
    note = {
        "cancellation": "1: the pushes of positive and negative rollouts on a token cancel.",
        "largest_sum": "S_B: sum of the advantages of a group's rollouts in a step; 0 if whole.",
    }[metric_name]
    title = label[0].upper() + label[1:]
    return Figure(layered_chart, title, f"{note} Bars: range of the seeds.", _keys(styles))


def _rate_styles(runs: Runs) -> dict[str, str]:
    return {
        f"lr {rate:g}": COLOURS[index % len(COLOURS)]
        for index, rate in enumerate(learning_rates(runs))
    }


def _keys(styles: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((colour, series) for series, colour in styles.items())
