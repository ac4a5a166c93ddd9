"""Write a study's charts as SVG and PNG, side by side, in the report's light colours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from counterpoise.files import atomic_write
from counterpoise.report.charts.render import read_asset
from counterpoise.report.charts.vega import vega_specification, vega_theme
from counterpoise.report.panels.panel import Figure

# Pixels of a narrow and of a wide chart; a wide one has a line to itself.
CHART_WIDTH = {False: 340, True: 720}
LETTER_WIDTH = 6.2  # approximate pixels of a letter in a legend


VEGA_LITE_VERSION = ".".join(alt.SCHEMA_VERSION.split(".")[:2])


def write_figures(figures: tuple[Figure, ...], folder: Path, name: str) -> None:
    write_svg(figures, folder / f"{name}.svg")
    specification = arrange_side_by_side(figures)
    image = vl_convert.vegalite_to_png(specification, vl_version=VEGA_LITE_VERSION, scale=2)
    with atomic_write(folder / f"{name}.png") as temporary:
        temporary.write_bytes(image)


def write_svg(figures: tuple[Figure, ...], path: Path) -> None:
    specification = arrange_side_by_side(figures)
    image = vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE_VERSION)
    with atomic_write(path) as temporary:
        temporary.write_text(image, encoding="utf-8")


def arrange_side_by_side(figures: tuple[Figure, ...]) -> dict[str, Any]:
    """Combine all charts into one Vega-Lite specification, two in a line."""
    datasets: dict[str, Any] = {}  # Vega-Lite looks for named data at the top level only
    lines: list[list[dict[str, Any]]] = []
    has_room = False  # whether the last line has room for another chart
    for figure in figures:
        if figure.wide or not has_room:
            lines.append([])
        has_room = not figure.wide and not lines[-1]
        lines[-1].append(_titled(figure, datasets))
    figure_spec = {
        "vconcat": [{"hconcat": line, "spacing": 48} for line in lines],
        "spacing": 40,
        "datasets": datasets,
        "config": {**vega_theme(), "background": "white", "padding": 18, "concat": {"spacing": 6}},
        "resolve": {"scale": {"color": "independent"}},
    }
    # An image has no CSS, so every var(--name) is replaced by the light colour it stands for.
    coloured: dict[str, Any] = json.loads(_in_colour(json.dumps(figure_spec)))
    return coloured


def _titled(figure: Figure, datasets: dict[str, Any]) -> dict[str, Any]:
    """The chart below its title and legend; its data is moved into `datasets`."""
    chart = vega_specification(figure)
    if "concat" not in chart:  # small multiples have sizes of their own
        chart.update(width=CHART_WIDTH[figure.wide])
        chart.setdefault("height", 200)
    # The page's charts fit their container; an image needs fixed sizes.
    chart.pop("autosize", None)
    datasets |= chart.pop("datasets", {})
    title = {"text": _plain(figure.title), "anchor": "start", "fontSize": 14, "offset": 8}
    if not figure.keys:
        return {**chart, "title": title}
    return {"vconcat": [{**_legend(figure), "title": title}, chart], "spacing": 8}


def _legend(figure: Figure) -> dict[str, Any]:
    """Colour swatches with their meaning, in as many lines as they need."""
    # Vega-Lite's own legends need a colour scale; these charts set the colour of a mark directly.
    x_offset, line_number, entries = 0.0, 0, []
    for colour, meaning in figure.keys:
        width = 26 + LETTER_WIDTH * len(meaning)
        if x_offset and x_offset + width > CHART_WIDTH[figure.wide]:
            x_offset, line_number = 0.0, line_number + 1
        entries.append(
            {"x": x_offset, "y": 8 + 16 * line_number, "meaning": meaning, "colour": colour}
        )
        x_offset += width
    position = {
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
            "encoding": position,
        }
        for colour in dict.fromkeys(colour for colour, _ in figure.keys)
    ]
    labels = {
        "mark": {"type": "text", "align": "left", "xOffset": 14, "color": "var(--muted)"},
        "encoding": {**position, "text": {"field": "meaning"}},
    }
    size = {"width": CHART_WIDTH[figure.wide], "height": 16 * (line_number + 1)}
    return {"data": {"values": entries}, "layer": [*swatches, labels], **size}


def light_palette() -> dict[str, str]:
    """Read the light colours from page.css, the only place where they are defined."""
    root_rules = str(read_asset("page.css")).partition("}")[0]
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", root_rules))


def _in_colour(text: str) -> str:
    colours = light_palette()
    return re.sub(r"var\(--([\w-]+)\)", lambda m: colours[m[1]], text)


def _plain(title: str) -> str:
    return re.sub(r"<[^>]+>", "", str(title))
