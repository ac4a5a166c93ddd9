"""Figures of an experiment: differences, curves as small multiples, costs, mechanism."""

from __future__ import annotations

from pathlib import Path

import altair as alt

from counterpoise.lab.experiments.compare import Cost, bounded
from counterpoise.lab.experiments.curves import HELDOUT, Runs, end, of_seeds
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.measures import MEASURES, wilson
from counterpoise.lab.experiments.pieces import read_pieces
from counterpoise.lab.experiments.results import Result, results
from counterpoise.lab.experiments.seed_means import WINDOW, over_seeds
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.report.charts.multiples import ChartFrame, chart_grid, small_chart
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import SeedMean

ARMS = {  # colours of page.css; others take what is left, in turn
    "shuffled": "ink", "QB": "positive", "RB": "green", "QB+RB": "violet", "by_sign": "negative",
    "zigzag": "soft", "token_balanced": "gold",
}  # fmt: skip
SPARE = ("positive", "negative", "green", "violet", "gold", "series", "soft")
BY_RATE = ("series", "negative", "violet", "green", "positive", "soft")
MECHANISM = (  # column, title, axis format, iterations averaged
    ("success", "training success", "%", WINDOW),
    ("entropy", "entropy, nats", "", WINDOW),
    ("response_length", "response length, tokens", "", WINDOW),
    ("cancellation", "cancellation index", "", 1),
    ("flipped", "tokens flipped", "%", 1),
    ("split", "groups split", "%", WINDOW),
)


def figures(runs: Runs, experiment: Experiment) -> dict[str, tuple[Figure, ...]]:
    """Part -> its figures; every part is one image."""
    rates = [r for r in experiment.design.rates if any(key.rate == r for key in runs)]
    if experiment.options.pilot or len(experiment.design.arms) == 1:
        return {"curves": (_pilot(runs, experiment, rates),)}
    found = results(runs, experiment)
    return {
        "differences": tuple(
            _differences(found, experiment, rate)
            for rate in rates
            if any(one.rate == rate and one.against for one in found)
        ),
        "curves": tuple(f for rate in rates for f in _curves(runs, experiment, rate)),
        "costs": _costs(found, rates),
        "mechanism": tuple(_mechanism(runs, experiment, rate) for rate in rates),
    }


def figures_of(folder: Path, name: str) -> tuple[Figure, ...]:
    """All of them, from a folder that `poise experiment` made."""
    experiment = read_experiment(folder / f"{name}.toml")
    runs = read_pieces(folder, experiment).runs
    return tuple(f for part in figures(runs, experiment).values() for f in part)


# -- differences and costs ----------------------------------------------------------------------


def _differences(found: list[Result], experiment: Experiment, rate: float) -> Figure:
    first, *others = experiment.columns
    styles = {"equal rollouts": "ink", "equal updates": "soft"}
    styles |= {f"equal rollouts, at {experiment.columns[o]}": "positive" for o in others[:1]}
    points = []
    for one in found:
        if one.rate == rate and first in one.against:
            pairs = [one.against[first].rollouts, one.against[first].updates]
            pairs += [one.against[o].rollouts for o in others[:1] if o in one.against]
            points += [
                forest_point(one.arm, series, _bounds(mean))
                for series, mean in zip(styles, pairs, strict=False)
            ]
    drawn = forest_chart(
        points, styles, f"success minus {experiment.baseline}",
        f"Held-out success against {experiment.baseline}, learning rate {rate:g}",
        axis="+%", number="+.1%", zero=True, guide=0.0,
    )  # fmt: skip
    note = f"Held-out success at {experiment.columns[first]} unless said, paired by seed; "
    note += "intervals hold for all arms and rates together."
    return Figure(drawn, f"Against {experiment.baseline}, lr {rate:g}", note, _keys(styles))


def _costs(found: list[Result], rates: list[float]) -> tuple[Figure, ...]:
    styles = {f"lr {rate:g}": BY_RATE[i % len(BY_RATE)] for i, rate in enumerate(rates)}
    shown = []
    for name in ("along", "gain_rollouts", "gain_updates", "per_update", "dropped"):
        points = [
            forest_point(one.arm, f"lr {one.rate:g}", _bounds(one.measures[name]))
            for one in found
            if name in one.measures
        ]
        if not points:
            continue
        label, percent = MEASURES[name].label, MEASURES[name].percent
        drawn = forest_chart(
            points, styles, label, f"{label} by arm", zero=True,
            axis="%" if percent else ",.0f", number=".2%" if percent else ".1f",
        )  # fmt: skip
        note = "Mean over seeds with its 95 % interval."
        shown.append(Figure(drawn, label[0].upper() + label[1:], note, _keys(styles)))
    points = [forest_point(one.arm, f"lr {one.rate:g}", _collapsed(one)) for one in found]
    title = "share of runs"
    drawn = forest_chart(
        points, styles, title, "Runs that collapsed by arm", axis="%", number=".0%", zero=True
    )
    note = "By the definition in the experiment file; 95 % intervals (Wilson)."
    return (Figure(drawn, "Runs that collapsed", note, _keys(styles)), *shown)


def _collapsed(one: Result) -> tuple[float, float, float]:
    return (one.collapsed / one.seeds, *wilson(one.collapsed, one.seeds))


def _bounds(mean: SeedMean) -> tuple[float, float | None, float | None]:
    return (mean.value, mean.low, mean.high) if bounded(mean) else (mean.value, None, None)


# -- curves -------------------------------------------------------------------------------------


def _curves(runs: Runs, experiment: Experiment, rate: float) -> list[Figure]:
    """Every arm beside the baseline; against updates only those that take fewer. By chance a step
    may be without signal and is not taken: two in a hundred are not fewer."""
    arms = [a for a in experiment.design.arms if a != experiment.baseline and _has(runs, a, rate)]
    fewer = [arm for arm in arms if _updates(runs, arm, rate) < 0.98 * _most_updates(runs, rate)]
    found = [_against(runs, experiment, rate, arms, "rollouts")] if arms else []
    if fewer:
        found.append(_against(runs, experiment, rate, fewer, "updates"))
    return found


def _against(
    runs: Runs, experiment: Experiment, rate: float, arms: list[str], cost: Cost
) -> Figure:
    columns = list(experiment.columns)[:2]
    lines = {
        (arm, column): over_seeds(runs, arm, rate, column, cost)
        for arm in [experiment.baseline, *arms]
        for column in columns
    }
    frame = ChartFrame.fit(lines.values(), cost, "%")
    charts = []
    for arm in arms:
        layers: list[alt.Chart] = []
        for who, colour in ((experiment.baseline, "muted"), (arm, _colour(arm, experiment))):
            for dash, column in zip(([1, 0], [4, 3]), columns, strict=False):
                layers += frame.line_with_band(lines[who, column], colour, dash)
        charts.append(small_chart(layers, arm))
    first, *others = (experiment.columns[c] for c in columns)
    note = f"Mean over seeds with its 95 % interval. Solid: sampled at {first}"
    note += f"; dashed: at {others[0]}." if others else "."
    title = f"Held-out success over {cost}, lr {rate:g}"
    keys = [(_colour(arm, experiment), arm) for arm in arms] + [("muted", experiment.baseline)]
    return Figure(chart_grid(charts, title), title, note, tuple(keys), wide=True)


def _mechanism(runs: Runs, experiment: Experiment, rate: float) -> Figure:
    arms = [arm for arm in experiment.design.arms if _has(runs, arm, rate)]
    charts = []
    for column, title, form, window in MECHANISM:
        lines = {a: over_seeds(runs, a, rate, column, window=window) for a in arms}
        if not any(lines.values()):
            continue
        frame = ChartFrame.fit(lines.values(), "rollouts", form)
        above = sorted(arms, key=lambda a: a == experiment.baseline)  # the baseline is drawn last
        layers = [
            layer
            for arm in above
            if lines[arm]
            for layer in frame.line_with_band(lines[arm], _colour(arm, experiment), opacity=0.1)
        ]
        charts.append(small_chart(layers, title))
    title = f"What happened besides, lr {rate:g}"
    note = "Means over seeds with 95 % intervals, over rollouts sampled; "
    note += f"noisy ones are also averaged over {WINDOW} iterations."
    keys = tuple((_colour(arm, experiment), arm) for arm in arms)
    return Figure(chart_grid(charts, title), title, note, keys, wide=True)


def _pilot(runs: Runs, experiment: Experiment, rates: list[float]) -> Figure:
    """Every seed of every rate: held-out success, and entropy."""
    charts = []
    arm = experiment.baseline
    for column, title, form in ((HELDOUT, "held-out success", "%"), ("entropy", "entropy", "")):
        lines = [
            (place, [_point(r, column) for r in curve if r.get(column) is not None])
            for place, rate in enumerate(rates)
            for key, curve in runs.items()
            if (key.arm, key.rate) == (arm, rate)
        ]
        frame = ChartFrame.fit([line for _, line in lines], "rollouts", form)
        layers = [frame.line(line, BY_RATE[i % len(BY_RATE)]) for i, line in lines if line]
        if layers:
            charts.append(small_chart(layers, title, width=300, height=180))
    keys = tuple((BY_RATE[i % len(BY_RATE)], f"lr {rate:g}") for i, rate in enumerate(rates))
    return Figure(
        chart_grid(charts, "Pilot"), f"{arm} at every rate", "A line a seed.", keys, wide=True
    )


def _point(r: Record, column: str) -> Record:
    return {"at": r["rollouts"], "value": r[column], "low": r[column], "high": r[column]}


# -- arms -----------------------------------------------------------------------------------------


def _colour(arm: str, experiment: Experiment) -> str:
    if arm in ARMS:
        return ARMS[arm]
    others = [a for a in experiment.design.arms if a not in ARMS]
    return SPARE[others.index(arm) % len(SPARE)]


def _keys(styles: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((colour, series) for series, colour in styles.items())


def _has(runs: Runs, arm: str, rate: float) -> bool:
    return any((key.arm, key.rate) == (arm, rate) for key in runs)


def _updates(runs: Runs, arm: str, rate: float) -> float:
    ends = of_seeds(runs, arm, rate, end("updates")).values()
    return sum(ends) / len(ends)


def _most_updates(runs: Runs, rate: float) -> float:
    """Of the arm that took most."""
    return max(_updates(runs, arm, rate) for arm in {key.arm for key in runs if key.rate == rate})
