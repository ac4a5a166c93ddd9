"""A study's charts as SVG and PNG: side by side, in the report's light colours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from counterpoise.files import replacing
from counterpoise.report.charts.render import read_asset
from counterpoise.report.charts.vega import vega_specification, vega_theme
from counterpoise.report.panels.panel import Figure

CHART_WIDTH = {False: 340, True: 720}  # of one chart; wide ones stand alone
LETTER_WIDTH = 6.2  # width of one in a legend, about


def write_figures(figures: tuple[Figure, ...], folder: Path, name: str) -> None:
    spec = arrange_side_by_side(figures)
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    for suffix, drawn in (
        ("svg", vl_convert.vegalite_to_svg(spec, vl_version=version).encode()),
        ("png", vl_convert.vegalite_to_png(spec, vl_version=version, scale=2)),
    ):
        with replacing(folder / f"{name}.{suffix}") as temporary:
            temporary.write_bytes(drawn)


def arrange_side_by_side(figures: tuple[Figure, ...]) -> dict[str, Any]:
    """One Vega-Lite specification of all charts, two in a line."""
    data: dict[str, Any] = {}  # Vega-Lite finds named data only at the top
    lines: list[list[dict[str, Any]]] = []
    narrow = False  # the last line has room for another
    for figure in figures:
        if figure.wide or not narrow:
            lines.append([])
        narrow = not figure.wide and not lines[-1]
        lines[-1].append(_titled(figure, data))
    whole = {
        "vconcat": [{"hconcat": line, "spacing": 48} for line in lines],
        "spacing": 40,
        "datasets": data,
        "config": {**vega_theme(), "background": "white", "padding": 18, "concat": {"spacing": 6}},
        "resolve": {"scale": {"color": "independent"}},
    }
    coloured: dict[str, Any] = json.loads(_in_colour(json.dumps(whole)))
    return coloured


def _titled(figure: Figure, data: dict[str, Any]) -> dict[str, Any]:
    """The chart under its title and its legend; its data goes into `data`."""
    chart = vega_specification(figure)
    if "concat" not in chart:  # small multiples have sizes of their own
        chart.update(width=CHART_WIDTH[figure.wide])
        chart.setdefault("height", 200)
    chart.pop("autosize", None)
    data |= chart.pop("datasets", {})
    title = {"text": _plain(figure.title), "anchor": "start", "fontSize": 14, "offset": 8}
    if not figure.keys:
        return {**chart, "title": title}
    return {"vconcat": [{**_legend(figure), "title": title}, chart], "spacing": 8}


def _legend(figure: Figure) -> dict[str, Any]:
    """A swatch and its meaning, one after the other, in as many lines as they need."""
    x, line, entries = 0.0, 0, []
    for colour, meaning in figure.keys:
        width = 26 + LETTER_WIDTH * len(meaning)
        if x and x + width > CHART_WIDTH[figure.wide]:
            x, line = 0.0, line + 1
        entries.append({"x": x, "y": 8 + 16 * line, "meaning": meaning, "colour": colour})
        x += width
    place = {
        "x": {"field": "x", "type": "quantitative", "scale": None, "axis": None},
        "y": {"field": "y", "type": "quantitative", "scale": None, "axis": None},
    }
    swatches = [
        {
            "transform": [{"filter": f"datum.colour === '{colour}'"}],
            "mark": {
                "type": "square",
                "size": 90,
                "opacity": 1,
                "xOffset": 5,
                "color": f"var(--{colour})",
            },
            "encoding": place,
        }
        for colour in dict.fromkeys(colour for colour, _ in figure.keys)
    ]
    words = {
        "mark": {"type": "text", "align": "left", "xOffset": 14, "color": "var(--muted)"},
        "encoding": {**place, "text": {"field": "meaning"}},
    }
    size = {"width": CHART_WIDTH[figure.wide], "height": 16 * (line + 1)}
    return {"data": {"values": entries}, "layer": [*swatches, words], **size}


def light_palette() -> dict[str, str]:
    """The light colours of page.css by name: the one place where they are written down."""
    root = str(read_asset("page.css")).partition("}")[0]
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", root))


def _in_colour(text: str) -> str:
    colours = light_palette()
    return re.sub(r"var\(--([\w-]+)\)", lambda m: colours[m[1]], text)


def _plain(title: str) -> str:
    return re.sub(r"<[^>]+>", "", str(title))
