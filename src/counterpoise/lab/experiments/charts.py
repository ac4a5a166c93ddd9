"""Figures of an experiment: differences from the baseline, success over learning rates, curves,
costs, mechanism.
"""

from __future__ import annotations

from pathlib import Path

import altair as alt

from counterpoise.lab.experiments.compare import Cost, has_interval
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, Runs, last_value, values_by_seed
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.measures import MEASURES, wilson
from counterpoise.lab.experiments.pieces import read_pieces
from counterpoise.lab.experiments.results import ArmResult, arm_results
from counterpoise.lab.experiments.seed_means import SMOOTHING_WINDOW, mean_curve
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.report.charts.multiples import ChartFrame, chart_grid, small_chart
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import SeedMean

# Colours of page.css; other arms take SPARE_COLOURS in turn, without those that are in use.
ARM_COLOURS = {
    "shuffled": "ink", "QB": "positive", "RB": "green", "QB+RB": "violet", "by_sign": "negative",
    "zigzag": "soft", "token_balanced": "gold",
}  # fmt: skip
SPARE_COLOURS = ("positive", "negative", "green", "violet", "gold", "series", "soft")
RATE_COLOURS = ("series", "negative", "violet", "green", "positive", "soft")
MIN_RATES = 3  # for a curve of success over learning rates
# (column, title, axis format, iterations averaged)
MECHANISM_PANELS = (
    ("success", "training success", "%", SMOOTHING_WINDOW),
    ("entropy", "entropy, nats", "", SMOOTHING_WINDOW),
    ("response_length", "response length, tokens", "", SMOOTHING_WINDOW),
    ("cancellation", "cancellation index", "", 1),
    ("flipped", "tokens flipped", "%", 1),
    ("split", "groups split", "%", SMOOTHING_WINDOW),
)


def experiment_figures(runs: Runs, experiment: Experiment) -> dict[str, tuple[Figure, ...]]:
    """Group -> its figures; every group is written as one image."""
    rates = [
        rate for rate in experiment.design.rates if any(run_key.rate == rate for run_key in runs)
    ]
    if experiment.options.pilot or len(experiment.design.arms) == 1:
        return {"curves": (_pilot(runs, experiment, rates),)}
    results = arm_results(runs, experiment)
    return {
        "differences": tuple(
            _differences(results, experiment, rate)
            for rate in rates
            if any(result.rate == rate and result.vs_baseline for result in results)
        ),
        "rates": (_success_over_rates(results, experiment),) if len(rates) >= MIN_RATES else (),
        "curves": tuple(figure for rate in rates for figure in _curves(runs, experiment, rate)),
        "costs": _costs(results, rates),
        "mechanism": tuple(_mechanism(runs, experiment, rate) for rate in rates),
    }


def load_figures(folder: Path, name: str) -> tuple[Figure, ...]:
    """All figures of a folder that `poise experiment` wrote."""
    experiment = read_experiment(folder / f"{name}.toml")
    runs = read_pieces(folder, experiment).runs
    return tuple(
        figure for figures in experiment_figures(runs, experiment).values() for figure in figures
    )


# -- differences and costs ----------------------------------------------------------------------


def _differences(results: list[ArmResult], experiment: Experiment, rate: float) -> Figure:
    main_column, *other_columns = experiment.heldout_columns
    styles = {"equal rollouts": "ink", "equal updates": "soft"}
    second_column = other_columns[0] if other_columns else None
    if second_column:
        second_setting = experiment.heldout_columns[second_column]
        styles[f"equal rollouts, at {second_setting}"] = "positive"
    points = []
    for result in results:
        if result.rate == rate and main_column in result.vs_baseline:
            means = [
                result.vs_baseline[main_column].rollouts,
                result.vs_baseline[main_column].updates,
            ]
            if second_column in result.vs_baseline:
                means.append(result.vs_baseline[second_column].rollouts)
            points += [
                forest_point(result.arm, series, _mean_and_interval(mean))
                for series, mean in zip(styles, means, strict=False)
            ]
    chart = forest_chart(
        points, styles, f"success minus {experiment.baseline}",
        f"Held-out success against {experiment.baseline}, learning rate {rate:g}",
        axis="+%", number="+.1%", zero=True, guide=0.0,
    )  # fmt: skip
    main_setting = experiment.heldout_columns[main_column]
    note = f"Held-out success at {main_setting} unless stated otherwise, "
    note += "paired by seed; intervals hold for all arms and rates together."
    return Figure(chart, f"Against {experiment.baseline}, lr {rate:g}", note, _legend(styles))


def _success_over_rates(results: list[ArmResult], experiment: Experiment) -> Figure:
    """Final held-out success of every arm over the learning rate, one chart per setting."""
    charts = []
    for column, setting in experiment.heldout_columns.items():
        curves = {
            arm: [
                {
                    "at": result.rate,
                    "value": mean.value,
                    "low": mean.low if has_interval(mean) else mean.value,
                    "high": mean.high if has_interval(mean) else mean.value,
                }
                for result in results
                if result.arm == arm and (mean := result.success.get(column))
            ]
            for arm in experiment.design.arms
        }
        if not any(curves.values()):  # success was not measured at this setting
            continue
        frame = ChartFrame.fit(curves.values(), "learning rate", "%", log_x=True)
        layers = [
            layer
            for arm, curve in curves.items()
            for layer in frame.line_with_band(curve, _colour(arm, experiment))
        ]
        charts.append(small_chart(layers, f"at {setting}", width=300, height=200))
    title = "Final held-out success over the learning rate"
    note = "Mean over seeds with its 95 % interval, after the last iteration."
    legend_entries = tuple((_colour(arm, experiment), arm) for arm in experiment.design.arms)
    return Figure(chart_grid(charts, title), title, note, legend_entries, wide=True)


def _costs(results: list[ArmResult], rates: list[float]) -> tuple[Figure, ...]:
    styles = {
        f"lr {rate:g}": RATE_COLOURS[index % len(RATE_COLOURS)] for index, rate in enumerate(rates)
    }
    cost_figures = []
    for measure_name in ("mean_success", "gain_rollouts", "gain_updates", "per_update", "dropped"):
        points = [
            forest_point(
                result.arm, f"lr {result.rate:g}", _mean_and_interval(result.measures[measure_name])
            )
            for result in results
            if measure_name in result.measures
        ]
        if not points:
            continue
        label, percent = MEASURES[measure_name].label, MEASURES[measure_name].percent
        chart = forest_chart(
            points, styles, label, f"{label} by arm", zero=True,
            axis="%" if percent else ",.0f", number=".2%" if percent else ".1f",
        )  # fmt: skip
        note = "Mean over seeds with its 95 % interval."
        cost_figures.append(Figure(chart, label[0].upper() + label[1:], note, _legend(styles)))
    points = [
        forest_point(result.arm, f"lr {result.rate:g}", _collapse_share(result))
        for result in results
    ]
    title = "share of runs"
    chart = forest_chart(
        points, styles, title, "Runs that collapsed by arm", axis="%", number=".0%", zero=True
    )
    note = "By the definition in the experiment file; 95 % intervals (Wilson)."
    return (Figure(chart, "Runs that collapsed", note, _legend(styles)), *cost_figures)


def _collapse_share(result: ArmResult) -> tuple[float, float, float]:
    return (result.collapsed_runs / result.seeds, *wilson(result.collapsed_runs, result.seeds))


def _mean_and_interval(mean: SeedMean) -> tuple[float, float | None, float | None]:
    return (mean.value, mean.low, mean.high) if has_interval(mean) else (mean.value, None, None)


# -- curves -------------------------------------------------------------------------------------


def _curves(runs: Runs, experiment: Experiment, rate: float) -> list[Figure]:
    """Curves of every arm beside the baseline, over rollouts, and over updates where it matters."""
    arms = [
        arm
        for arm in experiment.design.arms
        if arm != experiment.baseline and _has_runs(runs, arm, rate)
    ]
    # The figure over updates differs from the one over rollouts only for arms that take fewer
    # updates. Any arm may lose a few by chance, to steps without signal: up to 2 % do not count.
    arms_with_fewer_updates = [
        arm for arm in arms if _mean_updates(runs, arm, rate) < 0.98 * _most_updates(runs, rate)
    ]
    figures = [_curve_grid(runs, experiment, rate, arms, "rollouts")] if arms else []
    if arms_with_fewer_updates:
        figures.append(_curve_grid(runs, experiment, rate, arms_with_fewer_updates, "updates"))
    return figures


def _curve_grid(
    runs: Runs, experiment: Experiment, rate: float, arms: list[str], cost: Cost
) -> Figure:
    columns = list(experiment.heldout_columns)[:2]
    mean_curves = {
        (arm, column): mean_curve(runs, arm, rate, column, cost)
        for arm in [experiment.baseline, *arms]
        for column in columns
    }
    frame = ChartFrame.fit(mean_curves.values(), cost, "%")
    charts = []
    for arm in arms:
        layers: list[alt.Chart] = []
        for drawn_arm, colour in ((experiment.baseline, "muted"), (arm, _colour(arm, experiment))):
            # Solid for the first evaluation setting, dashed for the second.
            for dash, column in zip(([1, 0], [4, 3]), columns, strict=False):
                layers += frame.line_with_band(mean_curves[drawn_arm, column], colour, dash)
        charts.append(small_chart(layers, arm))
    main_setting, *other_settings = (experiment.heldout_columns[column] for column in columns)
    note = f"Mean over seeds with its 95 % interval. Solid: sampled at {main_setting}"
    note += f"; dashed: at {other_settings[0]}." if other_settings else "."
    title = f"Held-out success over {cost}, lr {rate:g}"
    legend_entries = [(_colour(arm, experiment), arm) for arm in arms] + [
        ("muted", experiment.baseline)
    ]
    return Figure(chart_grid(charts, title), title, note, tuple(legend_entries), wide=True)


def _mechanism(runs: Runs, experiment: Experiment, rate: float) -> Figure:
    arms = [arm for arm in experiment.design.arms if _has_runs(runs, arm, rate)]
    charts = []
    for column, title, axis_format, window in MECHANISM_PANELS:
        mean_curves = {arm: mean_curve(runs, arm, rate, column, window=window) for arm in arms}
        if not any(mean_curves.values()):
            continue
        frame = ChartFrame.fit(mean_curves.values(), "rollouts", axis_format)
        # The baseline is drawn last and so lies above the other curves.
        drawing_order = sorted(arms, key=lambda arm: arm == experiment.baseline)
        layers = [
            layer
            for arm in drawing_order
            if mean_curves[arm]
            for layer in frame.line_with_band(
                mean_curves[arm], _colour(arm, experiment), opacity=0.1
            )
        ]
        charts.append(small_chart(layers, title))
    title = f"Other measures, lr {rate:g}"
    note = "Means over seeds with 95 % intervals, over rollouts sampled; "
    note += f"noisy ones are also averaged over {SMOOTHING_WINDOW} iterations."
    legend_entries = tuple((_colour(arm, experiment), arm) for arm in arms)
    return Figure(chart_grid(charts, title), title, note, legend_entries, wide=True)


def _pilot(runs: Runs, experiment: Experiment, rates: list[float]) -> Figure:
    """Held-out success and entropy of the baseline: a line for every seed at every rate."""
    charts = []
    arm = experiment.baseline
    for column, title, axis_format in (
        (HELDOUT_COLUMN, "held-out success", "%"),
        ("entropy", "entropy", ""),
    ):
        seed_curves = [
            (rate_index, [_curve_point(record, column) for record in curve if _has(record, column)])
            for rate_index, rate in enumerate(rates)
            for run_key, curve in runs.items()
            if (run_key.arm, run_key.rate) == (arm, rate)
        ]
        frame = ChartFrame.fit(
            [seed_curve for _, seed_curve in seed_curves], "rollouts", axis_format
        )
        layers = [
            frame.line(seed_curve, RATE_COLOURS[rate_index % len(RATE_COLOURS)])
            for rate_index, seed_curve in seed_curves
            if seed_curve
        ]
        if layers:
            charts.append(small_chart(layers, title, width=300, height=180))
    legend_entries = tuple(
        (RATE_COLOURS[rate_index % len(RATE_COLOURS)], f"lr {rate:g}")
        for rate_index, rate in enumerate(rates)
    )
    return Figure(
        chart_grid(charts, "Pilot"),
        f"{arm} at every rate",
        "One line per seed.",
        legend_entries,
        wide=True,
    )


def _has(record: Record, column: str) -> bool:
    return record.get(column) is not None


def _curve_point(record: Record, column: str) -> Record:
    return {
        "at": record["rollouts"],
        "value": record[column],
        "low": record[column],
        "high": record[column],
    }


# -- arms -----------------------------------------------------------------------------------------


def _colour(arm: str, experiment: Experiment) -> str:
    if arm in ARM_COLOURS:
        return ARM_COLOURS[arm]
    arms = experiment.design.arms
    unlisted_arms = [name for name in arms if name not in ARM_COLOURS]
    used = {colour for name, colour in ARM_COLOURS.items() if name in arms}
    colours = [colour for colour in SPARE_COLOURS if colour not in used] or SPARE_COLOURS
    return colours[unlisted_arms.index(arm) % len(colours)]


def _legend(styles: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((colour, series) for series, colour in styles.items())


def _has_runs(runs: Runs, arm: str, rate: float) -> bool:
    return any((run_key.arm, run_key.rate) == (arm, rate) for run_key in runs)


def _mean_updates(runs: Runs, arm: str, rate: float) -> float:
    final_updates = values_by_seed(runs, arm, rate, last_value("updates")).values()
    return sum(final_updates) / len(final_updates)


def _most_updates(runs: Runs, rate: float) -> float:
    """The mean number of updates of the arm that took the most updates."""
    return max(
        _mean_updates(runs, arm, rate)
        for arm in {run_key.arm for run_key in runs if run_key.rate == rate}
    )
