"""Small multiples: curves with bands in several charts that share their axes.

A curve is a list of {"at", "value", "low", "high"} (lab/experiments/seed_means.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import altair as alt

from counterpoise.report.charts.series import base_chart
from counterpoise.statistics.finding import Record

Curve = list[Record]
SOLID: list[int] = [1, 0]
COLUMNS = 3


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """The axes of one chart, or of several that are compared.

    Example:
        frame = ChartFrame.fit([shuffled, grouped], "rollouts", "%")
        layers = [*frame.line_with_band(shuffled, "muted"), *frame.line_with_band(grouped, "ink")]
        small_chart(layers, "QB")
    """

    domain: tuple[float, float]
    x_range: tuple[float, float]
    x_title: str
    value_format: str  # "%", or "" for plain numbers
    log_ticks: tuple[float, ...] = ()  # of a logarithmic x axis; empty: the axis is linear

    @classmethod
    def fit(
        cls, curves: Iterable[Curve], x_title: str, value_format: str, *, log_x: bool = False
    ) -> ChartFrame:
        """Choose axes that have room for all curves and their bands, so that nothing is cut off."""
        points = [point for curve in curves for point in curve]
        lowest = min((min(point["value"], point["low"]) for point in points), default=0.0)
        highest = max((max(point["value"], point["high"]) for point in points), default=1.0)
        # Curves with a single value need a margin too, else the axis would have no extent.
        margin = 0.05 * (highest - lowest) or 0.05 * (abs(highest) or 1.0)
        domain = (lowest - margin, highest + margin)
        positions = sorted({point["at"] for point in points}) or [1.0]
        x_range = (positions[0] if log_x else 0.0, positions[-1] or 1.0)
        log_ticks = tuple(positions) if log_x else ()
        return cls(domain, x_range, x_title, value_format, log_ticks)

    def line(self, curve: Curve, style: str, dash: Sequence[int] = SOLID) -> alt.Chart:
        tooltip = [
            alt.Tooltip("at:Q", title=self.x_title, format="~e" if self.log_ticks else ",.0f"),
            alt.Tooltip("value:Q", format=".1%" if self.value_format else ".3f"),
        ]
        line_mark = base_chart(curve).mark_line(
            style=style, strokeDash=list(dash), strokeWidth=1.6, clip=True
        )
        return line_mark.encode(x=self._x(), y=self._y("value"), tooltip=tooltip)

    def line_with_band(
        self, curve: Curve, style: str, dash: Sequence[int] = SOLID, *, opacity: float = 0.16
    ) -> list[alt.Chart]:
        band_area = base_chart(curve).mark_area(style=style, opacity=opacity, clip=True)
        return [
            band_area.encode(x=self._x(), y=self._y("low"), y2=alt.Y2("high:Q")),
            self.line(curve, style, dash),
        ]

    def _x(self) -> alt.X:
        if self.log_ticks:
            x_scale = alt.Scale(type="log", domain=list(self.x_range), nice=False)
            # An expression, because with a format Vega labels only the powers of ten.
            x_axis = alt.Axis(
                title=self.x_title,
                values=list(self.log_ticks),
                tickMinStep=0,
                labelExpr="format(datum.value, '~e')",
            )
        else:
            x_scale = alt.Scale(domain=list(self.x_range), nice=False)
            x_axis = alt.Axis(title=self.x_title, format="~s", tickCount=3)
        return alt.X("at:Q", scale=x_scale, axis=x_axis)

    def _y(self, field: str) -> alt.Y:
        y_scale = alt.Scale(domain=list(self.domain), nice=False, zero=False)
        y_axis = alt.Axis(format=self.value_format or "~g", tickCount=4, title=None)
        return alt.Y(f"{field}:Q", scale=y_scale, axis=y_axis)


def small_chart(
    layers: Sequence[alt.Chart], title: str, *, width: int = 186, height: int = 140
) -> alt.LayerChart:
    title_params = alt.TitleParams(
        title, anchor="start", frame="group", fontSize=12, fontWeight="normal", offset=6
    )
    return alt.LayerChart(layer=list(layers), width=width, height=height, title=title_params)


def chart_grid(charts: Sequence[alt.LayerChart], description: str) -> alt.ConcatChart:
    return alt.ConcatChart(
        concat=list(charts),
        columns=COLUMNS,
        spacing={"row": 22, "column": 26},
        description=description,
    )
