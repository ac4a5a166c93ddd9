"""Charts of the DFPO study: each measure, by objective and condition."""

from __future__ import annotations

from counterpoise.lab.studies.dfpo.judge import CONDITIONS, chain_values
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.statistics.finding import Records
from counterpoise.statistics.student import student_mean

COLOURS = ("series", "negative", "ink", "muted")
TITLES = {
    "residual": "Exchangeability residual",
    "tax": "Learning tax, relative",
    "drift": "Drift between right answers, relative",
    "entropy": "Entropy at the end",
    "success": "Held-out success at the end",
    "steps": "Iterations until the score is reached",
}


def draw(records: Records) -> tuple[Figure, ...]:
    styles = {
        ", ".join(condition): colour for condition, colour in zip(CONDITIONS, COLOURS, strict=True)
    }
    keys = tuple((colour, name) for name, colour in styles.items())
    figures = []
    for name, by_chain in chain_values(records).items():
        points = []
        for arm in dict.fromkeys(key[0] for key in by_chain):
            for condition in CONDITIONS:
                seed_values = [
                    value for key, value in by_chain.items() if key[:3] == (arm, *condition)
                ]
                if seed_values:
                    mean = student_mean(seed_values)
                    estimate = (mean.value, mean.low, mean.high)
                    points.append(forest_point(arm, ", ".join(condition), estimate))
        if points:
            chart = forest_chart(points, styles, TITLES[name], f"{TITLES[name]}, by objective")
            figures.append(Figure(chart, TITLES[name], "Bars: 95 % over seeds.", keys))
    return tuple(figures)
