"""Vega-Lite in the page: the libraries, embedded once, and the theme that all charts share.

Charts name their colours: a mark has `style="positive"` and page.css defines that colour, so a
chart follows the light or dark colour scheme without being drawn again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from markupsafe import Markup

from counterpoise.report.charts.figure import Figure

COLOURS = (
    "positive", "negative", "series", "soft", "ink", "muted", "line", "green", "violet", "gold",
)  # fmt: skip
# Module that charts import -> the name that pip installs it by.
CHART_PACKAGES = {"altair": "altair", "vl_convert": "vl-convert-python"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


@cache
def javascript_bundle() -> Markup:
    """Vega, Vega-Lite and vega-embed as one script, in the version that Altair targets."""
    import altair
    import vl_convert

    vega_lite_version = ".".join(altair.SCHEMA_VERSION.split(".")[:2])
    return Markup(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vega_lite_version))


def explain_missing_package(fault: ModuleNotFoundError) -> str | None:
    """What to install where a page cannot draw its charts; None if another module is missing."""
    module = (fault.name or "").partition(".")[0]
    if module not in CHART_PACKAGES:
        return None
    return f"charts need {module}, which is not installed: pip install {CHART_PACKAGES[module]}"


@contextmanager
def trusted_charts() -> Iterator[None]:
    """Create charts without Altair's check of each part, which is a third of a page's time.

    Only the numbers of our charts differ from run to run; tests create every chart with the check.
    """
    from altair.utils import schemapi

    with schemapi.debug_mode(False):
        yield


def vega_specification(figure: Figure) -> dict[str, Any]:
    """The chart as Vega-Lite JSON, without the schema address and the theme that Altair adds.

    It is not validated here, because that takes seconds: see `trusted_charts`.
    """
    specification: dict[str, Any] = figure.chart.to_dict(validate=False)
    specification.pop("$schema", None)
    specification.pop("config", None)
    return specification


def vega_theme() -> dict[str, Any]:
    return {
        "background": None,
        "font": FONT,
        "padding": {"left": 0, "right": 4, "top": 6, "bottom": 0},
        "view": {"stroke": None},
        "axis": {
            "domain": False,
            "ticks": False,
            "gridColor": "var(--line)",
            "labelColor": "var(--muted)",
            "labelFontSize": 11,
            "labelPadding": 6,
            "title": None,
            "titleColor": "var(--muted)",
            "titleFontSize": 11,
            "titleFontWeight": "normal",
        },
        "axisX": {"grid": False, "domain": True, "domainColor": "var(--line)", "tickMinStep": 1},
        # Fixed extents align the plots of charts that stand below each other.
        "axisY": {"minExtent": 38, "maxExtent": 38, "tickCount": 4},
        "header": {"labelColor": "var(--muted)", "titleColor": "var(--muted)"},
        "legend": {"labelColor": "var(--muted)", "titleColor": "var(--muted)"},
        "title": {"color": "var(--ink)", "subtitleColor": "var(--muted)"},
        "text": {"color": "var(--ink)"},
        "line": {"strokeWidth": 1.75, "strokeCap": "round", "strokeJoin": "round"},
        "point": {"size": 22, "filled": True, "opacity": 1},
        "style": {colour_name: {"color": f"var(--{colour_name})"} for colour_name in COLOURS},
    }
