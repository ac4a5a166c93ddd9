"""Figures of the credit study: a line for each way of giving credit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import altair as alt

from counterpoise.lab.studies.credit.arms import BASELINE
from counterpoise.lab.studies.credit.training import Trained, trained
from counterpoise.lab.studies.credit.value_correlation import Tokens, Valued, valued
from counterpoise.report.charts.forest import ForestPoint, forest_chart, forest_point
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Records
from counterpoise.statistics.student import Mean

LABELS = 130  # pixels of an arm's name
PARTS = {"right": "positive", "wrong": "negative"}  # series -> colour


def draw(records: Records) -> tuple[Figure, ...]:
    tokens = Tokens(records)
    found = valued(records, tokens)
    runs = trained(records)
    figures = [
        _credit(found, tokens),
        _parts(found),
        _moved(found),
        _one(found, "residual", "Left on shared prefixes", "0: what rollouts share cancels."),
        _one(found, "cancellation", "Cancellation index", "1: pushes on a token undo each other."),
        _overhead(found),
    ]
    if any(one.rollouts for one in runs):
        figures.append(_training(runs))
    return tuple(figures)


def _credit(found: Sequence[Valued], tokens: Tokens) -> Figure:
    """Sorted, the baseline as a dashed line."""
    known = sorted((o for o in found if o.credit), key=_by("credit"), reverse=True)
    base = next(o for o in found if o.arm == BASELINE)
    drawn = _forest(
        [forest_point(o.arm, "A w", o.credit) for o in known if o.credit],
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


def _parts(found: Sequence[Valued]) -> Figure:
    shown = [o for o in found if o.right or o.wrong]
    points = [
        forest_point(o.arm, name, interval)
        for o in sorted(shown, key=_by("credit"), reverse=True)
        for name in PARTS
        if (interval := getattr(o, name))
    ]
    drawn = _forest(
        points,
        PARTS,
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


def _moved(found: Sequence[Valued]) -> Figure:
    known = sorted((o for o in found if o.moved), key=_by("moved"), reverse=True)
    base = next(o for o in found if o.arm == BASELINE)
    drawn = _forest(
        [forest_point(o.arm, "moved", o.moved) for o in known if o.moved],
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


def _one(found: Sequence[Valued], name: str, title: str, note: str) -> Figure:
    points = [forest_point(o.arm, name, interval) for o in found if (interval := getattr(o, name))]
    drawn = _forest(points, {name: "series"}, title.lower(), f"{title} by arm", zero=True)
    return Figure(drawn, title, f"{note} The same batch in the demo's steps; 95 % over prompts.")


def _overhead(found: Sequence[Valued]) -> Figure:
    points = [
        forest_point(o.arm, "cost", (o.overhead, None, None)) for o in found if o.arm != BASELINE
    ]
    drawn = _forest(
        points, {"cost": "series"}, "of an iteration", "Overhead by arm", zero=True, axis="%",
        number=".0%",
    )  # fmt: skip
    return Figure(drawn, "Overhead", "Beside an iteration with uniform weights, sampling included.")


def _training(runs: Sequence[Trained]) -> Figure:
    several = len({one.rate for one in runs}) > 1
    points = [
        forest_point(f"{one.arm}, lr {one.rate:g}" if several else one.arm, series, _interval(mean))
        for one in runs
        for series, mean in (("equal rollouts", one.rollouts), ("equal seconds", one.seconds))
        if mean
    ]
    styles = {"equal rollouts": "ink", "equal seconds": "soft"}
    drawn = _forest(
        points, styles, f"success minus {BASELINE}", "Success against uniform credit, by arm",
        axis="+%", number="+.1%", zero=True, guide=0.0,
    )  # fmt: skip
    keys = tuple((colour, name) for name, colour in styles.items())
    paired = [one.rollouts.n for one in runs if one.rollouts]
    least, most = min(paired), max(paired)
    seeds = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    note = f"Paired over {seeds}; the intervals hold for all arms together."
    return Figure(drawn, "After training", note, keys, wide=True)


def _forest(
    points: Sequence[ForestPoint],
    styles: Mapping[str, str],
    title: str,
    description: str,
    *,
    axis: str = ".2~f",
    number: str = "+.2f",
    zero: bool = False,
    guide: float | None = None,
) -> alt.LayerChart:
    return forest_chart(
        points, styles, title, description, axis=axis, number=number, zero=zero, guide=guide,
        labels=LABELS,
    )  # fmt: skip


def _by(name: str) -> Callable[[Valued], float]:
    def key(one: Valued) -> float:
        interval: Interval | None = getattr(one, name)
        return interval[0] if interval else float("-inf")

    return key


def _interval(mean: Mean) -> tuple[float, float | None, float | None]:
    return (mean.value, mean.low, mean.high) if mean.n > 1 else (mean.value, None, None)
