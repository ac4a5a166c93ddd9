"""Figures of the credit study: a line for each way of giving credit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import altair as alt

from counterpoise.lab.studies.credit.arms import BASELINE
from counterpoise.lab.studies.credit.training import TrainingResult, training_results
from counterpoise.lab.studies.credit.value_correlation import (
    ArmCorrelations,
    ComparedTokens,
    correlate_arms,
)
from counterpoise.report.charts.forest import Point, forest, point
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Records
from counterpoise.statistics.student import SeedMean

LABELS = 130  # pixels of an arm's name
SUBSET_STYLES = {"right": "positive", "wrong": "negative"}  # series -> colour


def draw(records: Records) -> tuple[Figure, ...]:
    tokens = ComparedTokens(records)
    found = correlate_arms(records, tokens)
    runs = training_results(records)
    figures = [
        _credit_figure(found, tokens),
        _subset_figure(found),
        _movement_figure(found),
        _column_figure(
            found, "residual", "Left on shared prefixes", "0: what rollouts share cancels."
        ),
        _column_figure(
            found, "cancellation", "Cancellation index", "1: pushes on a token undo each other."
        ),
        _overhead_figure(found),
    ]
    if any(one.by_rollouts for one in runs):
        figures.append(_training_figure(runs))
    return tuple(figures)


def _credit_figure(found: Sequence[ArmCorrelations], tokens: ComparedTokens) -> Figure:
    """Sorted, the baseline as a dashed line."""
    known = sorted((o for o in found if o.credit), key=_sort_key("credit"), reverse=True)
    base = next(o for o in found if o.arm == BASELINE)
    drawn = _forest(
        [point(o.arm, "A w", o.credit) for o in known if o.credit],
        {"A w": "series"},
        "rank correlation with value",
        "Rank correlation of A w with the Monte Carlo value of a token",
        guide=base.credit[0] if base.credit else None,
    )
    note = (
        f"Open tokens of {len(set(tokens.prompts))} prompts, 95 % intervals over prompts. Dashed: "
        f"A alone. The noise of the values allows for {tokens.ceiling:.2f} at most."
    )
    return Figure(drawn, "Which credit follows a token's value?", note, wide=True)


def _subset_figure(found: Sequence[ArmCorrelations]) -> Figure:
    shown = [o for o in found if o.right or o.wrong]
    points = [
        point(o.arm, name, interval)
        for o in sorted(shown, key=_sort_key("credit"), reverse=True)
        for name in SUBSET_STYLES
        if (interval := getattr(o, name))
    ]
    drawn = _forest(
        points,
        SUBSET_STYLES,
        "rank correlation with value",
        "Rank correlation of token weights with value, in right and in wrong rollouts",
        guide=0.0,
    )
    note = (
        "Of w in right rollouts and of -w in wrong ones, where A says nothing: praise for tokens "
        "of high value, blame for those of low value."
    )
    keys = (("positive", "right rollouts"), ("negative", "wrong rollouts"))
    return Figure(drawn, "Within right and within wrong rollouts", note, keys, wide=True)


def _movement_figure(found: Sequence[ArmCorrelations]) -> Figure:
    known = sorted((o for o in found if o.moved), key=_sort_key("moved"), reverse=True)
    base = next(o for o in found if o.arm == BASELINE)
    drawn = _forest(
        [point(o.arm, "moved", o.moved) for o in known if o.moved],
        {"moved": "series"},
        "rank correlation with value",
        "Rank correlation of a token's movement in one iteration with its value",
        guide=base.moved[0] if base.moved else None,
    )
    note = (
        "The token's change of log-probability in one iteration on the same batch: what comes of "
        "the credit after everything has pushed everything. Dashed: uniform."
    )
    return Figure(drawn, "Which update follows a token's value?", note, wide=True)


def _column_figure(found: Sequence[ArmCorrelations], name: str, title: str, note: str) -> Figure:
    points = [point(o.arm, name, interval) for o in found if (interval := getattr(o, name))]
    drawn = _forest(points, {name: "series"}, title.lower(), f"{title} by arm", zero=True)
    return Figure(drawn, title, f"{note} The same batch in the demo's steps; 95 % over prompts.")


def _overhead_figure(found: Sequence[ArmCorrelations]) -> Figure:
    points = [point(o.arm, "cost", (o.overhead, None, None)) for o in found if o.arm != BASELINE]
    drawn = _forest(
        points, {"cost": "series"}, "of an iteration", "Overhead by arm", zero=True, axis="%",
        number=".0%",
    )  # fmt: skip
    return Figure(drawn, "Overhead", "Beside an iteration with uniform weights, sampling included.")


def _training_figure(runs: Sequence[TrainingResult]) -> Figure:
    several = len({one.rate for one in runs}) > 1
    points = [
        point(f"{one.arm}, lr {one.rate:g}" if several else one.arm, series, _interval(mean))
        for one in runs
        for series, mean in (("equal rollouts", one.by_rollouts), ("equal seconds", one.by_seconds))
        if mean
    ]
    styles = {"equal rollouts": "ink", "equal seconds": "soft"}
    drawn = _forest(
        points, styles, f"success minus {BASELINE}", "Success against uniform credit, by arm",
        axis="+%", number="+.1%", zero=True, guide=0.0,
    )  # fmt: skip
    keys = tuple((colour, name) for name, colour in styles.items())
    paired = [one.by_rollouts.n for one in runs if one.by_rollouts]
    least, most = min(paired), max(paired)
    seeds = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    note = f"Paired over {seeds}; the intervals hold for all arms together."
    return Figure(drawn, "After training", note, keys, wide=True)


def _forest(
    points: Sequence[Point],
    styles: Mapping[str, str],
    title: str,
    description: str,
    *,
    axis: str = ".2~f",
    number: str = "+.2f",
    zero: bool = False,
    guide: float | None = None,
) -> alt.LayerChart:
    return forest(
        points, styles, title, description, axis=axis, number=number, zero=zero, guide=guide,
        labels=LABELS,
    )  # fmt: skip


def _sort_key(name: str) -> Callable[[ArmCorrelations], float]:
    def key(one: ArmCorrelations) -> float:
        interval: Interval | None = getattr(one, name)
        return interval[0] if interval else float("-inf")

    return key


def _interval(mean: SeedMean) -> tuple[float, float | None, float | None]:
    return (mean.value, mean.low, mean.high) if mean.n > 1 else (mean.value, None, None)
