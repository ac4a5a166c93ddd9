"""Learning curves and results of the arms, from the records of lab/studies/arms.py."""

from __future__ import annotations

from statistics import fmean

import altair as alt

from counterpoise.lab.experiments.compare import compare
from counterpoise.lab.experiments.curves import Runs, arm_names, group_by_run, learning_rates
from counterpoise.lab.studies.arms import BASELINE, BESIDE, after, beside
from counterpoise.report.charts.forest import forest, point
from counterpoise.report.charts.series import chart, smoothed
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.finding import Record, Records

COLOURS = ("series", "negative")  # one a learning rate, slow first
DASHES = ([1, 0], [5, 3])


def draw(records: Records) -> tuple[Figure, ...]:
    runs = group_by_run(records)
    return (
        _results(runs),
        _differences(runs),
        *(_curves(runs, arm) for arm in arm_names(runs) if arm != BASELINE),
        *(_beside(runs, name) for name in ("cancellation", "largest_sum")),
    )


def _results(runs: Runs) -> Figure:
    styles = _by_rate(runs)
    points = [
        point(arm, f"lr {rate:g}", (end.value, end.low, end.high))
        for arm in arm_names(runs)
        for rate in learning_rates(runs)
        for end in [after(runs, arm, rate)]
    ]
    drawn = forest(
        points, styles, "held-out success", "Held-out success after training, by arm",
        axis="%", number=".1%",
    )  # fmt: skip
    n = after(runs, BASELINE, learning_rates(runs)[0]).n
    note = f"Mean of {n} seeds with its 95 % interval (Student's t), at equal rollouts."
    return Figure(drawn, "After training", note, _keys(styles))


def _differences(runs: Runs) -> Figure:
    points, styles = [], {}
    for place, rate in enumerate(learning_rates(runs)):
        for cost, colours in (("rollouts", ("ink", "negative")), ("updates", ("soft", "muted"))):
            series = f"equal {cost}" + (f", lr {rate:g}" if len(learning_rates(runs)) > 1 else "")
            styles[series] = colours[place]
            for arm in arm_names(runs):
                if arm != BASELINE:
                    mean = getattr(compare(runs, arm, BASELINE)[place], cost)
                    points.append(point(arm, series, (mean.value, mean.low, mean.high)))
    drawn = forest(
        points, styles, f"success minus {BASELINE}", "Success against shuffled, paired by seed",
        axis="+%", number="+.1%", zero=True, guide=0.0,
    )  # fmt: skip
    note = "Paired by seed; the intervals hold for all learning rates together."
    return Figure(drawn, "Against shuffled", note, _keys(styles))


def _curves(runs: Runs, arm: str) -> Figure:
    """Training success, smoothed, with the range of the seeds; held-out success as points."""
    layers: list[alt.Chart] = []
    axis = alt.Axis(title="rollouts sampled", tickCount=5)
    x = alt.X("rollouts:Q", axis=axis, scale=alt.Scale(nice=False))
    y = alt.Y("value:Q", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    for place, rate in enumerate(learning_rates(runs)):
        for who, colour in ((BASELINE, "soft"), (arm, COLOURS[place])):
            line = chart(_over_seeds(runs, who, rate))
            points = chart(_heldout(runs, who, rate))
            layers += [
                line.mark_area(style=colour, opacity=0.18).encode(x=x, y="low:Q", y2="high:Q"),
                line.mark_line(style=colour, strokeDash=DASHES[place]).encode(x=x, y=y),
                points.mark_point(style=colour, size=40).encode(x=x, y=y),
            ]
    drawn = alt.LayerChart(
        layer=layers, width="container", height=170, description=f"Learning curves of {arm}"
    )
    keys = [(COLOURS[i], f"{arm}, lr {rate:g}") for i, rate in enumerate(learning_rates(runs))]
    note = "Training success, smoothed, mean and range of the seeds; points: held-out success."
    return Figure(drawn, arm, note, (*keys, ("soft", BASELINE)))


def _over_seeds(runs: Runs, arm: str, rate: float) -> list[Record]:
    by_seed: dict[int, list[Record]] = {}
    for r in _curve(runs, arm, rate):
        if r["success"] is not None:
            by_seed.setdefault(r["seed"], []).append(r)
    smooth = {seed: smoothed([r["success"] for r in mine])[0] for seed, mine in by_seed.items()}
    line = []
    for i, first in enumerate(next(iter(by_seed.values()))):
        values = [values[i] for values in smooth.values()]
        line.append(
            {"rollouts": first["rollouts"], "value": fmean(values), "low": min(values),
             "high": max(values)}
        )  # fmt: skip
    return line


def _heldout(runs: Runs, arm: str, rate: float) -> list[Record]:
    found: dict[int, list[float]] = {}
    for r in _curve(runs, arm, rate):
        if r["heldout"] is not None:
            found.setdefault(r["rollouts"], []).append(r["heldout"])
    return [{"rollouts": at, "value": fmean(values)} for at, values in found.items()]


def _curve(runs: Runs, arm: str, rate: float) -> list[Record]:
    return [r for key, c in runs.items() if (key.arm, key.rate) == (arm, rate) for r in c]


def _beside(runs: Runs, name: str) -> Figure:
    styles = _by_rate(runs)
    points = [
        point(arm, f"lr {rate:g}", found)
        for arm in arm_names(runs)
        for rate in learning_rates(runs)
        if (found := beside(runs, arm, rate, name))
    ]
    label = BESIDE[name][0]
    drawn = forest(points, styles, label, f"{label} by arm", zero=True)
    note = {
        "cancellation": "1: what positive and negative rollouts push on a token undoes itself.",
        "largest_sum": "Largest advantage sum of a part of a group in one step; 0: groups whole.",
    }[name]
    title = label[0].upper() + label[1:]
    return Figure(drawn, title, f"{note} Bars: range of the seeds.", _keys(styles))


def _by_rate(runs: Runs) -> dict[str, str]:
    return {f"lr {rate:g}": COLOURS[i] for i, rate in enumerate(learning_rates(runs))}


def _keys(styles: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((colour, series) for series, colour in styles.items())
