"""Assemble panels into one HTML file that embeds all it needs and uses no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write, cannot_write
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.render import embed_json, read_asset, render
from counterpoise.report.charts.vega import javascript_bundle, vega_specification, vega_theme
from counterpoise.report.content_policy import content_policy
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import make_visible

PAGE_START = b"<!doctype html"  # of every page that we write


def write_page(target: Path, page_html: str) -> Path:
    """Write the page and return its path; an interrupted write leaves an older page as it was.

    Only a page is replaced: `--out RUN/metrics.jsonl` must not cost a run its log.
    """
    try:
        check_replaceable(target)
        with atomic_write(target) as temporary_path:
            temporary_path.write_text(page_html, encoding="utf-8", errors="replace")
    except OSError as fault:
        raise cannot_write(target, fault, "; choose another --out") from fault
    return target


def check_replaceable(target: Path) -> None:
    """Refuse to replace a file that has content and is not an HTML page."""
    if not target.is_file():
        return
    with target.open("rb") as file:
        start = file.read(len(PAGE_START))
    if start and start.lower() != PAGE_START:
        raise PoiseError(
            f"{target} exists and is not an HTML page: choose another --out, or remove it first"
        )


def assemble_page(
    kind: str, title: str, panels: Mapping[str, Panel | None], bar: Markup | None = None
) -> str:
    """HTML of the page: the panels in order, without those that are None, their assets and data.

    `kind` is the small line above the title. `bar` stays in view while the reader scrolls.
    """
    sections: list[dict[str, Any]] = []
    for section_name, panel in panels.items():
        if panel is None:
            continue
        body_html, figures = split_body(panel)
        specifications = [embed_json(vega_specification(figure)) for figure in figures]
        sections.append(
            {
                "name": section_name,
                "panel": panel,
                "html": body_html,
                "figures": list(zip(figures, specifications, strict=True)),
                "data": None if panel.data is None else embed_json(panel.data),
            }
        )
    # Panels may share an asset; each is embedded once.
    asset_names = list(
        dict.fromkeys(asset_name for section in sections for asset_name in section["panel"].assets)
    )
    has_charts = any(section["figures"] for section in sections)
    own_scripts = [
        read_asset(asset_name)
        for asset_name in ("page.js", *asset_names)
        if asset_name.endswith(".js")
    ]
    # Vega comes first because page.js uses it. The policy below lists exactly these scripts.
    scripts = [javascript_bundle(), *own_scripts] if has_charts else own_scripts
    return render(
        "page.html",
        kind=kind,
        title=make_visible(title),
        bar=bar or "",
        sections=sections,
        styles=[
            read_asset(asset_name)
            for asset_name in ("page.css", *asset_names)
            if asset_name.endswith(".css")
        ],
        scripts=scripts,
        policy=content_policy(scripts),
        theme=embed_json(vega_theme()),
    )


def split_body(panel: Panel) -> tuple[Markup | None, tuple[Figure, ...]]:
    """(HTML, charts) of a panel's body, which is either HTML or charts."""
    if isinstance(panel.body, Markup):
        return panel.body, ()
    if isinstance(panel.body, tuple):
        return None, panel.body
    return None, (Figure(panel.body, title="", wide=True),)
