"""Write a study's charts as SVG and PNG, side by side, in the report's light colours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from counterpoise.files import atomic_write
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.render import read_asset
from counterpoise.report.charts.vega import vega_specification, vega_theme

# Width in pixels, by `Figure.wide`; a wide chart has a row of its own.
CHART_WIDTH = {False: 340, True: 720}
CHARACTER_WIDTH = 6.2  # approximate pixels of a character in a legend
VEGA_LITE_VERSION = ".".join(alt.SCHEMA_VERSION.split(".")[:2])


def write_figures(figures: tuple[Figure, ...], folder: Path, file_stem: str) -> None:
    write_svg(figures, folder / f"{file_stem}.svg")
    specification = arrange_side_by_side(figures)
    png_bytes = vl_convert.vegalite_to_png(specification, vl_version=VEGA_LITE_VERSION, scale=2)
    with atomic_write(folder / f"{file_stem}.png") as temporary:
        temporary.write_bytes(png_bytes)


def write_svg(figures: tuple[Figure, ...], svg_path: Path) -> None:
    specification = arrange_side_by_side(figures)
    svg_text = vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE_VERSION)
    with atomic_write(svg_path) as temporary:
        temporary.write_text(svg_text, encoding="utf-8")


def arrange_side_by_side(figures: tuple[Figure, ...]) -> dict[str, Any]:
    """Combine all charts into one Vega-Lite specification, two in a row."""
    datasets: dict[str, Any] = {}  # Vega-Lite looks for named data at the top level only
    chart_rows: list[list[dict[str, Any]]] = []
    row_has_room = False  # whether the last row can take another chart
    for figure in figures:
        if figure.wide or not row_has_room:
            chart_rows.append([])
        row_has_room = not figure.wide and not chart_rows[-1]
        chart_rows[-1].append(_add_title_and_legend(figure, datasets))
    figure_spec = {
        "vconcat": [{"hconcat": chart_row, "spacing": 48} for chart_row in chart_rows],
        "spacing": 40,
        "datasets": datasets,
        "config": {**vega_theme(), "background": "white", "padding": 18, "concat": {"spacing": 6}},
        "resolve": {"scale": {"color": "independent"}},
    }
    # An image has no CSS, so it cannot look up colour variables.
    coloured: dict[str, Any] = json.loads(_resolve_colours(json.dumps(figure_spec)))
    return coloured


def _add_title_and_legend(figure: Figure, datasets: dict[str, Any]) -> dict[str, Any]:
    """The chart below its title and legend. Its data is moved into `datasets`, which is changed."""
    chart_spec = vega_specification(figure)
    if "concat" not in chart_spec:  # small multiples have sizes of their own
        chart_spec.update(width=CHART_WIDTH[figure.wide])
        chart_spec.setdefault("height", 200)
    # The page's charts fit their container; an image needs fixed sizes.
    chart_spec.pop("autosize", None)
    datasets |= chart_spec.pop("datasets", {})
    title_spec = {"text": _strip_tags(figure.title), "anchor": "start", "fontSize": 14, "offset": 8}
    if not figure.keys:
        return {**chart_spec, "title": title_spec}
    return {"vconcat": [{**_legend(figure), "title": title_spec}, chart_spec], "spacing": 8}


def _legend(figure: Figure) -> dict[str, Any]:
    """Colour swatches with their meaning, in as many lines as they need."""
    # Vega-Lite's own legends need a colour scale; these charts set the colour of a mark directly.
    x_offset, legend_line, entries = 0.0, 0, []
    for colour, meaning in figure.keys:
        entry_width = 26 + CHARACTER_WIDTH * len(meaning)
        if x_offset and x_offset + entry_width > CHART_WIDTH[figure.wide]:
            x_offset, legend_line = 0.0, legend_line + 1
        entries.append(
            {"x": x_offset, "y": 8 + 16 * legend_line, "meaning": meaning, "colour": colour}
        )
        x_offset += entry_width
    position_encoding = {
        "x": {"field": "x", "type": "quantitative", "scale": None, "axis": None},
        "y": {"field": "y", "type": "quantitative", "scale": None, "axis": None},
    }
    swatch_layers = [
        {
            "transform": [{"filter": f"datum.colour === '{colour}'"}],
            "mark": {
                "type": "square",
                "size": 90,
                "opacity": 1,
                "xOffset": 5,
                "color": f"var(--{colour})",
            },
            "encoding": position_encoding,
        }
        for colour in dict.fromkeys(colour for colour, _ in figure.keys)
    ]
    label_layer = {
        "mark": {"type": "text", "align": "left", "xOffset": 14, "color": "var(--muted)"},
        "encoding": {**position_encoding, "text": {"field": "meaning"}},
    }
    legend_size = {"width": CHART_WIDTH[figure.wide], "height": 16 * (legend_line + 1)}
    return {"data": {"values": entries}, "layer": [*swatch_layers, label_layer], **legend_size}


def light_palette() -> dict[str, str]:
    """Read the light colours from page.css, the only place where they are defined."""
    root_rules = str(read_asset("page.css")).partition("}")[0]
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", root_rules))


def _resolve_colours(specification_json: str) -> str:
    """Replace every var(--name) by the light colour of that name."""
    palette = light_palette()
    return re.sub(r"var\(--([\w-]+)\)", lambda variable: palette[variable[1]], specification_json)


def _strip_tags(title: str) -> str:
    return re.sub(r"<[^>]+>", "", str(title))
