"""Charts of the credit study, with one line for each arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from counterpoise.lab.studies.credit.arms import BASELINE
from counterpoise.lab.studies.credit.training import TrainingResult, training_results
from counterpoise.lab.studies.credit.value_correlation import (
    ArmCorrelations,
    ComparedTokens,
    correlate_arms,
)
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Records
from counterpoise.statistics.student import SeedMean

LABEL_WIDTH = 130  # pixels for the name of an arm
SUBSET_STYLES = {"right": "positive", "wrong": "negative"}  # series -> colour


def draw(records: Records) -> tuple[Figure, ...]:
    tokens = ComparedTokens(records)
    correlations = correlate_arms(records, tokens)
    runs = training_results(records)
    figures = [
        _credit_figure(correlations, tokens),
        _subset_figure(correlations),
        _movement_figure(correlations),
        _column_figure(
            correlations,
            "residual",
            "Left on shared prefixes",
            "Exchangeability residual: share of the pull on shared prefixes that does not cancel.",
        ),
        _column_figure(
            correlations,
            "cancellation",
            "Cancellation index",
            "1: the pushes on a token cancel each other.",
        ),
        _overhead_figure(correlations),
    ]
    if any(result.by_rollouts for result in runs):
        figures.append(_training_figure(runs))
    return tuple(figures)


def _credit_figure(correlations: Sequence[ArmCorrelations], tokens: ComparedTokens) -> Figure:
    """Correlation of A w with value, sorted; the baseline is a dashed line."""
    ranked = sorted(
        (result for result in correlations if result.credit), key=_sort_key("credit"), reverse=True
    )
    baseline = next(result for result in correlations if result.arm == BASELINE)
    layered_chart = _forest(
        [forest_point(result.arm, "A w", result.credit) for result in ranked if result.credit],
        {"A w": "series"},
        "rank correlation with value",
        "Rank correlation of A w with the Monte Carlo value of a token",
        guide=baseline.credit[0] if baseline.credit else None,
    )
    note = (
        f"Open tokens of {len(set(tokens.prompts))} prompts, 95 % intervals over prompts. Dashed: "
        f"A alone. The noise of the values allows for {tokens.ceiling:.2f} at most."
    )
    return Figure(layered_chart, "Which credit follows a token's value?", note, wide=True)


def _subset_figure(correlations: Sequence[ArmCorrelations]) -> Figure:
    weighted = [result for result in correlations if result.right or result.wrong]
    points = [
        forest_point(result.arm, subset, interval)
        for result in sorted(weighted, key=_sort_key("credit"), reverse=True)
        for subset in SUBSET_STYLES
        if (interval := getattr(result, subset))
    ]
    layered_chart = _forest(
        points,
        SUBSET_STYLES,
        "rank correlation with value",
        "Rank correlation of token weights with value, in right and in wrong rollouts",
        guide=0.0,
    )
    note = (
        "For w in right rollouts and -w in wrong ones, where A has one sign: tokens of high value "
        "should get more credit, tokens of low value more blame."
    )
    legend_entries = (("positive", "right rollouts"), ("negative", "wrong rollouts"))
    return Figure(
        layered_chart, "Within right and within wrong rollouts", note, legend_entries, wide=True
    )


def _movement_figure(correlations: Sequence[ArmCorrelations]) -> Figure:
    ranked = sorted(
        (result for result in correlations if result.moved), key=_sort_key("moved"), reverse=True
    )
    baseline = next(result for result in correlations if result.arm == BASELINE)
    layered_chart = _forest(
        [forest_point(result.arm, "moved", result.moved) for result in ranked if result.moved],
        {"moved": "series"},
        "rank correlation with value",
        "Rank correlation of a token's movement in one iteration with its value",
        guide=baseline.moved[0] if baseline.moved else None,
    )
    note = (
        "The token's change of log-probability in one iteration on the same batch: the result of "
        "the credit after all tokens have pushed each other. Dashed: uniform."
    )
    return Figure(layered_chart, "Which update follows a token's value?", note, wide=True)


def _column_figure(
    correlations: Sequence[ArmCorrelations], column: str, title: str, note: str
) -> Figure:
    points = [
        forest_point(result.arm, column, interval)
        for result in correlations
        if (interval := getattr(result, column))
    ]
    layered_chart = _forest(points, {column: "series"}, title.lower(), f"{title} by arm", zero=True)
    return Figure(
        layered_chart, title, f"{note} The same batch in the demo's steps; 95 % over prompts."
    )


def _overhead_figure(correlations: Sequence[ArmCorrelations]) -> Figure:
    points = [
        forest_point(result.arm, "cost", (result.overhead, None, None))
        for result in correlations
        if result.arm != BASELINE
    ]
    layered_chart = _forest(
        points,
        {"cost": "series"},
        title="of an iteration",
        description="Overhead by arm",
        zero=True,
        axis="%",
        number=".0%",
    )
    return Figure(
        layered_chart,
        "Overhead",
        "Extra time over an iteration with uniform weights, sampling included.",
    )


def _training_figure(runs: Sequence[TrainingResult]) -> Figure:
    has_several_rates = len({result.rate for result in runs}) > 1
    points = [
        forest_point(
            f"{result.arm}, lr {result.rate:g}" if has_several_rates else result.arm,
            series,
            _interval(mean),
        )
        for result in runs
        for series, mean in (
            ("equal rollouts", result.by_rollouts),
            ("equal seconds", result.by_seconds),
        )
        if mean
    ]
    styles = {"equal rollouts": "ink", "equal seconds": "soft"}
    layered_chart = _forest(
        points,
        styles,
        title=f"success minus {BASELINE}",
        description="Success against uniform credit, by arm",
        axis="+%",
        number="+.1%",
        zero=True,
        guide=0.0,
    )
    legend_entries = tuple((colour, series) for series, colour in styles.items())
    paired = [result.by_rollouts.n for result in runs if result.by_rollouts]
    fewest_seeds, most_seeds = min(paired), max(paired)
    seeds = (
        f"{most_seeds} seeds"
        if fewest_seeds == most_seeds
        else f"{fewest_seeds} to {most_seeds} seeds"
    )
    note = f"Paired over {seeds}; the intervals hold for all arms together."
    return Figure(layered_chart, "After training", note, legend_entries, wide=True)


# All charts of this study name arms in their rows and show correlations by default.
_forest = partial(forest_chart, axis=".2~f", number="+.2f", labels=LABEL_WIDTH)


def _sort_key(field_name: str) -> Callable[[ArmCorrelations], float]:
    def key(result: ArmCorrelations) -> float:
        interval: Interval | None = getattr(result, field_name)
        return interval[0] if interval else float("-inf")

    return key


def _interval(mean: SeedMean) -> tuple[float, float | None, float | None]:
    return (mean.value, mean.low, mean.high) if mean.n > 1 else (mean.value, None, None)
