"""Panels in, one HTML file out: it carries all it needs and asks nothing of the network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from counterpoise.errors import PoiseError
from counterpoise.files import replacing
from counterpoise.report.charts.render import embed_json, read_asset, render
from counterpoise.report.charts.vega import javascript_bundle, vega_specification, vega_theme
from counterpoise.report.content_policy import content_policy
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.texts import make_visible


def write_page(target: Path, page: str) -> Path:
    try:
        with replacing(target) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="replace")
    except OSError as fault:
        raise PoiseError(
            f"{target} cannot be written: {fault.strerror}; choose another --out"
        ) from fault
    return target


def assemble_page(
    kind: str, title: str, panels: Mapping[str, Panel | None], bar: Markup | None = None
) -> str:
    """The panels that have something to show, in order, with their files and data; `bar` stays in
    view above them."""
    sections: list[dict[str, Any]] = []
    for name, panel in panels.items():
        if panel is None:
            continue
        html, figures = split_body(panel)
        specs = [embed_json(vega_specification(figure)) for figure in figures]
        sections.append(
            {
                "name": name,
                "panel": panel,
                "html": html,
                "figures": list(zip(figures, specs, strict=True)),
                "data": None if panel.data is None else embed_json(panel.data),
            }
        )
    names = list(dict.fromkeys(file for s in sections for file in s["panel"].assets))
    charts = any(section["figures"] for section in sections)
    scripts = [read_asset(name) for name in ("page.js", *names) if name.endswith(".js")]
    scripts = [javascript_bundle(), *scripts] if charts else scripts
    return render(
        "page.html",
        kind=kind,
        title=make_visible(title),
        bar=bar or "",
        sections=sections,
        styles=[read_asset(name) for name in ("page.css", *names) if name.endswith(".css")],
        scripts=scripts,
        policy=content_policy(scripts),
        theme=embed_json(vega_theme()),
    )


def split_body(panel: Panel) -> tuple[Markup | None, tuple[Figure, ...]]:
    """(safe HTML, charts): a body is one or the other."""
    if isinstance(panel.body, Markup):
        return panel.body, ()
    if isinstance(panel.body, tuple):
        return None, panel.body
    return None, (Figure(panel.body, title="", wide=True),)
