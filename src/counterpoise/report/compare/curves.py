"""The curves of a comparison: the quantities of a run's own panels, all runs in each chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from markupsafe import Markup

from counterpoise.report.charts.render import render
from counterpoise.report.compare.compared_runs import ComparedRun, join_words
from counterpoise.report.compare.heldout import (
    HeldoutResults,
    heldout_by_setting,
    same_problems,
    same_reward,
)
from counterpoise.report.compare.overlay import (
    SMOOTH_FROM,
    RunPoints,
    interval_chart,
    overlay_chart,
)
from counterpoise.report.panels.buffer import wasted_shares
from counterpoise.report.panels.learning import SMALL_CHARTS, MetricChart, is_uninformative
from counterpoise.report.panels.monitor import (
    SHARE_METRICS,
    SIZE_METRICS,
    choose_share_axis,
    metric_points,
)
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.run_data import RunData

AxisEnds = Mapping[str, int]  # of every cost, for the axes
POSITIVE = MetricChart(
    "Positive share", "positive_share", "Of the rollouts with signal in a batch.", ".1%", "%"
)
WASTED = MetricChart(
    "Wasted rollouts",
    "",
    "Of those sampled so far, the share no update learns from: no signal, surplus, too old, "
    "replaced.",
    ".1%",
    "%",
)
SECONDS = MetricChart("Time of an iteration", "iteration_seconds", "In seconds.", ".2f")
TRAINING = MetricChart("Training success", "success", "", ".1%", "%", starts_at_zero=False)


def learning_panel(compared: Sequence[ComparedRun], last: AxisEnds) -> Panel | None:
    if not any(one.run.metrics for one in compared):
        return None
    heldout = {
        f"held-out{j.how}": _heldout(compared, j, last) for j in heldout_by_setting(compared)
    }
    training = TRAINING._replace(note=_judged_apart(compared))
    small = [q for q in SMALL_CHARTS if _says_something(compared, q.metric)]
    return _panel(
        "Learning",
        "Training success is measured on the prompts an iteration samples, so it varies with their "
        "difficulty. The axes of success follow the data and need not begin at 0. A number stands "
        "where its iteration ended." + _smoothing(compared) + _without_steps(compared),
        {
            **(heldout or {"held-out success": None}),
            TRAINING.title: _figure(compared, last, training, wide=True),
            **{q.title: _figure(compared, last, q) for q in small},
        },
    )


def batches_panel(compared: Sequence[ComparedRun], last: AxisEnds) -> Panel | None:
    if not any(one.run.metrics for one in compared):
        return None
    return _panel(
        "Batches and cost",
        "What the batches were made of, and what they took. Times depend on the machine and on "
        "what else it did.",
        {
            POSITIVE.title: _figure(compared, last, POSITIVE),
            WASTED.title: _figure(compared, last, WASTED, wasted_shares),
            SECONDS.title: _figure(compared, last, SECONDS),
        },
    )


def cancellation_panel(compared: Sequence[ComparedRun], last: AxisEnds) -> Panel | None:
    if not any(one.run.metrics for one in compared):
        return None
    figures = {title: _share(compared, last, m, title, note) for m, title, note in SHARE_METRICS}
    figures |= {
        t: _figure(compared, last, MetricChart(t, m, note, ".3~g")) for m, t, note in SIZE_METRICS
    }
    return _panel(
        "Cancellation",
        "What an update did to the log-probability of its own tokens, where the monitor looked.",
        figures,
    )


def _panel(title: str, caption: str, figures: Mapping[str, Figure | None]) -> Panel:
    """The charts there are, and the names of those that no run has numbers for."""
    absent = [name.lower() for name, figure in figures.items() if figure is None]
    drawn = tuple(figure for figure in figures.values() if figure)
    if not drawn:
        return Panel(title, f"No run has numbers for this: {join_words(absent)}.", Markup())
    after = render("comparison_absent.html", said=join_words(absent)) if absent else Markup()
    return Panel(title, caption, drawn, after=after)


def _share(
    compared: Sequence[ComparedRun], last: AxisEnds, metric: str, title: str, note: str
) -> Figure | None:
    values = [value for one in compared for _, value in metric_points(one.run, metric)]
    q = MetricChart(title, metric, note, *choose_share_axis(values))
    return _figure(compared, last, q, partial(metric_points, metric=metric))


def _says_something(compared: Sequence[ComparedRun], metric: str) -> bool:
    return any(not is_uninformative(one.run, metric) for one in compared if one.run.metrics)


def _smoothing(compared: Sequence[ComparedRun]) -> str:
    if max(len(one.run.metrics) for one in compared) <= SMOOTH_FROM:
        return ""
    return (
        " Faint: every iteration; strong: a centred mean over about an eighth of the run, at most "
        "25 iterations."
    )


def _without_steps(compared: Sequence[ComparedRun]) -> str:
    """An imported run cannot be drawn along what it does not tell."""
    names = [one.name for one in compared if not one.knows_steps]
    return f" Along optimizer steps there is nothing of {join_words(names)}." if names else ""


def _figure(
    compared: Sequence[ComparedRun],
    last: AxisEnds,
    q: MetricChart,
    points: Callable[[RunData], Sequence[tuple[int, float | None]]] | None = None,
    *,
    wide: bool = False,
) -> Figure | None:
    """None where no run has the number; a run that has none is named.

    The axis follows the data, not to 100 % as in a run's own panels: what differs shall be seen.
    """
    read = points or (lambda run: [(r["iteration"], r.get(q.metric)) for r in run.metrics])
    lines = [
        one.with_costs([(i, v) for i, v in read(one.run) if v is not None and math.isfinite(v)])
        for one in compared
    ]
    if not any(lines):
        return None
    drawn = overlay_chart(
        compared, lines, last, q.title, q.number_format, axis="~%" if "%" in q.axis_format else q.axis_format,
        zero=q.starts_at_zero, height=200 if wide else 140,
    )  # fmt: skip
    return Figure(drawn, q.title, f"{q.note} {_without(compared, lines)}".strip(), wide=wide)


def _heldout(
    compared: Sequence[ComparedRun], judged: HeldoutResults, last: AxisEnds
) -> Figure | None:
    lines: list[RunPoints] = []
    for one, evaluations in zip(compared, judged.evaluations, strict=True):
        bounds = {e["iteration"]: {"low": e["low"], "high": e["high"]} for e in evaluations}
        placed = one.with_costs([(e["iteration"], e["mean"]) for e in evaluations])
        lines.append([{**point, **bounds[point["iteration"]]} for point in placed])
    if not any(lines):
        return None
    title = f"Held-out success{judged.how}"
    note = "With 95 % intervals, drawn side by side where runs share a place. "
    if not same_problems(compared):
        note += "Not all were judged by the same problems: task or evaluate.prompts differ. "
    note += f"{_judged_apart(compared)} {_without(compared, lines)}"
    return Figure(interval_chart(compared, lines, last, title), title, note.strip(), wide=True)


def _judged_apart(compared: Sequence[ComparedRun]) -> str:
    said = "Not all were judged by the same reward: verify.name differs."
    return "" if same_reward(compared) else said


def _without(compared: Sequence[ComparedRun], lines: Sequence[RunPoints]) -> str:
    names = [one.name for one, line in zip(compared, lines, strict=True) if not line]
    return f"Missing in {join_words(names)}." if names else ""
