"""A study's charts as SVG and PNG: side by side, in the report's light colours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from counterpoise.report.page import specification
from counterpoise.report.panel import Figure
from counterpoise.report.render import asset
from counterpoise.report.vega import theme
from counterpoise.store.atomic import replacing

WIDTH = {False: 340, True: 720}  # of one chart; wide ones stand alone


def write_figures(figures: tuple[Figure, ...], folder: Path, name: str) -> None:
    spec = side_by_side(figures)
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    for suffix, drawn in (
        ("svg", vl_convert.vegalite_to_svg(spec, vl_version=version).encode()),
        ("png", vl_convert.vegalite_to_png(spec, vl_version=version, scale=2)),
    ):
        with replacing(folder / f"{name}.{suffix}") as temporary:
            temporary.write_bytes(drawn)


def side_by_side(figures: tuple[Figure, ...]) -> dict[str, Any]:
    """One Vega-Lite specification of all charts, two in a line."""
    charts = []
    data: dict[str, Any] = {}  # Vega-Lite finds named data only at the top
    for figure in figures:
        spec = specification(figure)
        spec.update(width=WIDTH[figure.wide])
        spec.setdefault("height", 200)
        spec.pop("autosize", None)
        data |= spec.pop("datasets", {})
        keys = "  \u00b7  ".join(meaning for _, meaning in figure.keys)
        spec["title"] = {"text": _plain(figure.title), "subtitle": keys, "anchor": "start"}
        charts.append(spec)
    whole = {
        "concat": charts,
        "datasets": data,
        "columns": 2 if len(charts) > 1 else 1,
        "spacing": 36,
        "config": {**theme(), "background": "white", "padding": 18},
        "resolve": {"scale": {"color": "independent"}},
    }
    coloured: dict[str, Any] = json.loads(_in_colour(json.dumps(whole)))
    return coloured


def light_palette() -> dict[str, str]:
    """The light colours of page.css by name: the one place where they are written down."""
    root = str(asset("page.css")).partition("}")[0]
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", root))


def _in_colour(text: str) -> str:
    colours = light_palette()
    return re.sub(r"var\(--([\w-]+)\)", lambda m: colours[m[1]], text)


def _plain(title: str) -> str:
    return re.sub(r"<[^>]+>", "", str(title))
