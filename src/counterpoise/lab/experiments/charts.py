"""Figures of an experiment: differences, curves as small multiples, costs, mechanism."""

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
from counterpoise.report.charts.forest import forest, point
from counterpoise.report.charts.multiples import Frame, grid, small
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import Mean

ARM_COLOURS = {  # colours of page.css; others take what is left, in turn
    "shuffled": "ink", "QB": "positive", "RB": "green", "QB+RB": "violet", "by_sign": "negative",
    "zigzag": "soft", "token_balanced": "gold",
}  # fmt: skip
SPARE_COLOURS = ("positive", "negative", "green", "violet", "gold", "series", "soft")
RATE_COLOURS = ("series", "negative", "violet", "green", "positive", "soft")
MECHANISM_PANELS = (  # column, title, axis format, iterations averaged
    ("success", "training success", "%", SMOOTHING_WINDOW),
    ("entropy", "entropy, nats", "", SMOOTHING_WINDOW),
    ("response_length", "response length, tokens", "", SMOOTHING_WINDOW),
    ("cancellation", "cancellation index", "", 1),
    ("flipped", "tokens flipped", "%", 1),
    ("split", "groups split", "%", SMOOTHING_WINDOW),
)


def experiment_figures(runs: Runs, experiment: Experiment) -> dict[str, tuple[Figure, ...]]:
    """Part -> its figures; every part is one image."""
    rates = [r for r in experiment.design.rates if any(key.rate == r for key in runs)]
    if experiment.options.pilot or len(experiment.design.arms) == 1:
        return {"curves": (_pilot(runs, experiment, rates),)}
    found = arm_results(runs, experiment)
    return {
        "differences": tuple(
            _differences(found, experiment, rate)
            for rate in rates
            if any(one.rate == rate and one.vs_baseline for one in found)
        ),
        "curves": tuple(f for rate in rates for f in _curves(runs, experiment, rate)),
        "costs": _costs(found, rates),
        "mechanism": tuple(_mechanism(runs, experiment, rate) for rate in rates),
    }


def load_figures(folder: Path, name: str) -> tuple[Figure, ...]:
    """All of them, from a folder that `poise experiment` made."""
    experiment = read_experiment(folder / f"{name}.toml")
    runs = read_pieces(folder, experiment).runs
    return tuple(f for part in experiment_figures(runs, experiment).values() for f in part)


# -- differences and costs ----------------------------------------------------------------------


def _differences(found: list[ArmResult], experiment: Experiment, rate: float) -> Figure:
    first, *others = experiment.heldout_columns
    styles = {"equal rollouts": "ink", "equal updates": "soft"}
    styles |= {
        f"equal rollouts, at {experiment.heldout_columns[o]}": "positive" for o in others[:1]
    }
    points = []
    for one in found:
        if one.rate == rate and first in one.vs_baseline:
            pairs = [one.vs_baseline[first].rollouts, one.vs_baseline[first].updates]
            pairs += [one.vs_baseline[o].rollouts for o in others[:1] if o in one.vs_baseline]
            points += [
                point(one.arm, series, _bounds(mean))
                for series, mean in zip(styles, pairs, strict=False)
            ]
    drawn = forest(
        points, styles, f"success minus {experiment.baseline}",
        f"Held-out success against {experiment.baseline}, learning rate {rate:g}",
        axis="+%", number="+.1%", zero=True, guide=0.0,
    )  # fmt: skip
    note = f"Held-out success at {experiment.heldout_columns[first]} unless said, paired by seed; "
    note += "intervals hold for all arms and rates together."
    return Figure(drawn, f"Against {experiment.baseline}, lr {rate:g}", note, _keys(styles))


def _costs(found: list[ArmResult], rates: list[float]) -> tuple[Figure, ...]:
    styles = {f"lr {rate:g}": RATE_COLOURS[i % len(RATE_COLOURS)] for i, rate in enumerate(rates)}
    shown = []
    for name in ("along", "gain_rollouts", "gain_updates", "per_update", "dropped"):
        points = [
            point(one.arm, f"lr {one.rate:g}", _bounds(one.measures[name]))
            for one in found
            if name in one.measures
        ]
        if not points:
            continue
        label, percent = MEASURES[name].label, MEASURES[name].percent
        drawn = forest(
            points, styles, label, f"{label} by arm", zero=True,
            axis="%" if percent else ",.0f", number=".2%" if percent else ".1f",
        )  # fmt: skip
        note = "Mean over seeds with its 95 % interval."
        shown.append(Figure(drawn, label[0].upper() + label[1:], note, _keys(styles)))
    points = [point(one.arm, f"lr {one.rate:g}", _collapsed(one)) for one in found]
    title = "share of runs"
    drawn = forest(
        points, styles, title, "Runs that collapsed by arm", axis="%", number=".0%", zero=True
    )
    note = "By the definition in the experiment file; 95 % intervals (Wilson)."
    return (Figure(drawn, "Runs that collapsed", note, _keys(styles)), *shown)


def _collapsed(one: ArmResult) -> tuple[float, float, float]:
    return (one.collapsed_runs / one.seeds, *wilson(one.collapsed_runs, one.seeds))


def _bounds(mean: Mean) -> tuple[float, float | None, float | None]:
    return (mean.value, mean.low, mean.high) if has_interval(mean) else (mean.value, None, None)


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
    columns = list(experiment.heldout_columns)[:2]
    lines = {
        (arm, column): mean_curve(runs, arm, rate, column, cost)
        for arm in [experiment.baseline, *arms]
        for column in columns
    }
    frame = Frame.of(lines.values(), cost, "%")
    charts = []
    for arm in arms:
        layers: list[alt.Chart] = []
        for who, colour in ((experiment.baseline, "muted"), (arm, _colour(arm, experiment))):
            for dash, column in zip(([1, 0], [4, 3]), columns, strict=False):
                layers += frame.banded(lines[who, column], colour, dash)
        charts.append(small(layers, arm))
    first, *others = (experiment.heldout_columns[c] for c in columns)
    note = f"Mean over seeds with its 95 % interval. Solid: sampled at {first}"
    note += f"; dashed: at {others[0]}." if others else "."
    title = f"Held-out success over {cost}, lr {rate:g}"
    keys = [(_colour(arm, experiment), arm) for arm in arms] + [("muted", experiment.baseline)]
    return Figure(grid(charts, title), title, note, tuple(keys), wide=True)


def _mechanism(runs: Runs, experiment: Experiment, rate: float) -> Figure:
    arms = [arm for arm in experiment.design.arms if _has(runs, arm, rate)]
    charts = []
    for column, title, form, window in MECHANISM_PANELS:
        lines = {a: mean_curve(runs, a, rate, column, window=window) for a in arms}
        if not any(lines.values()):
            continue
        frame = Frame.of(lines.values(), "rollouts", form)
        above = sorted(arms, key=lambda a: a == experiment.baseline)  # the baseline is drawn last
        layers = [
            layer
            for arm in above
            if lines[arm]
            for layer in frame.banded(lines[arm], _colour(arm, experiment), opacity=0.1)
        ]
        charts.append(small(layers, title))
    title = f"What happened besides, lr {rate:g}"
    note = "Means over seeds with 95 % intervals, over rollouts sampled; "
    note += f"noisy ones are also averaged over {SMOOTHING_WINDOW} iterations."
    keys = tuple((_colour(arm, experiment), arm) for arm in arms)
    return Figure(grid(charts, title), title, note, keys, wide=True)


def _pilot(runs: Runs, experiment: Experiment, rates: list[float]) -> Figure:
    """Every seed of every rate: held-out success, and entropy."""
    charts = []
    arm = experiment.baseline
    for column, title, form in (
        (HELDOUT_COLUMN, "held-out success", "%"),
        ("entropy", "entropy", ""),
    ):
        lines = [
            (place, [_point(r, column) for r in curve if r.get(column) is not None])
            for place, rate in enumerate(rates)
            for key, curve in runs.items()
            if (key.arm, key.rate) == (arm, rate)
        ]
        frame = Frame.of([line for _, line in lines], "rollouts", form)
        layers = [
            frame.line(line, RATE_COLOURS[i % len(RATE_COLOURS)]) for i, line in lines if line
        ]
        if layers:
            charts.append(small(layers, title, width=300, height=180))
    keys = tuple(
        (RATE_COLOURS[i % len(RATE_COLOURS)], f"lr {rate:g}") for i, rate in enumerate(rates)
    )
    return Figure(grid(charts, "Pilot"), f"{arm} at every rate", "A line a seed.", keys, wide=True)


def _point(r: Record, column: str) -> Record:
    return {"at": r["rollouts"], "value": r[column], "low": r[column], "high": r[column]}


# -- arms -----------------------------------------------------------------------------------------


def _colour(arm: str, experiment: Experiment) -> str:
    if arm in ARM_COLOURS:
        return ARM_COLOURS[arm]
    others = [a for a in experiment.design.arms if a not in ARM_COLOURS]
    return SPARE_COLOURS[others.index(arm) % len(SPARE_COLOURS)]


def _keys(styles: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((colour, series) for series, colour in styles.items())


def _has(runs: Runs, arm: str, rate: float) -> bool:
    return any((key.arm, key.rate) == (arm, rate) for key in runs)


def _updates(runs: Runs, arm: str, rate: float) -> float:
    ends = values_by_seed(runs, arm, rate, last_value("updates")).values()
    return sum(ends) / len(ends)


def _most_updates(runs: Runs, rate: float) -> float:
    """Of the arm that took most."""
    return max(_updates(runs, arm, rate) for arm in {key.arm for key in runs if key.rate == rate})
