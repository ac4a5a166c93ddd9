"""`poise report`: a folder in, one HTML file out. It asks nothing of the network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from counterpoise.errors import PoiseError
from counterpoise.report import PANELS
from counterpoise.report.panel import Figure, Panel
from counterpoise.report.render import asset, embed, render
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import visible
from counterpoise.report.vega import bundle, theme
from counterpoise.store.atomic import replacing


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run, an evaluation or a folder of studies; default FOLDER/report.html."""
    target = out or folder / "report.html"
    if not (folder / "config.toml").is_file():
        from counterpoise.report.imported import is_imported, write_imported

        if is_imported(folder):
            return write_imported(folder, target)
        from counterpoise.evaluate.cells import is_evaluation

        if is_evaluation(folder):
            from counterpoise.report.evaluation import write_evaluation

            return write_evaluation(folder, target)
        from counterpoise.report.studies import found_in, write_studies

        if found_in(folder):
            return write_studies(folder, target)
        raise PoiseError(
            f"{folder} holds no run and no studies, nor an evaluation: config.toml, NAME.json of a "
            "study, evaluation.json, none is there"
        )
    run = RunData.read(folder)
    panels = {name: PANELS.load(name)(run) for name in PANELS}
    return write_page(target, whole_page("Counterpoise run", run.name, panels))


def write_page(target: Path, page: str) -> Path:
    try:
        with replacing(target) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="replace")
    except OSError as fault:
        raise PoiseError(f"{target} cannot be written: {fault.strerror}") from fault
    return target


def whole_page(kind: str, title: str, panels: Mapping[str, Panel | None]) -> str:
    """The panels that have something to show, in order, with their files and data."""
    sections: list[dict[str, Any]] = []
    for name, panel in panels.items():
        if panel is None:
            continue
        html, figures = split_body(panel)
        specs = [embed(specification(figure)) for figure in figures]
        sections.append(
            {
                "name": name,
                "panel": panel,
                "html": html,
                "figures": list(zip(figures, specs, strict=True)),
                "data": None if panel.data is None else embed(panel.data),
            }
        )
    names = list(dict.fromkeys(file for s in sections for file in s["panel"].assets))
    charts = any(section["figures"] for section in sections)
    return render(
        "page.html",
        kind=kind,
        title=visible(title),
        sections=sections,
        styles=[asset(name) for name in ("page.css", *names) if name.endswith(".css")],
        scripts=[asset(name) for name in ("page.js", *names) if name.endswith(".js")],
        vega=bundle() if charts else None,
        theme=embed(theme()),
    )


def split_body(panel: Panel) -> tuple[Markup | None, tuple[Figure, ...]]:
    """(safe HTML, charts): a body is one or the other."""
    if isinstance(panel.body, Markup):
        return panel.body, ()
    if isinstance(panel.body, tuple):
        return None, panel.body
    return None, (Figure(panel.body, title="", wide=True),)


def specification(figure: Figure) -> dict[str, Any]:
    """Vega-Lite without the address and the look Altair adds; the page has its own.

    Altair checked every part when it was made; checking the whole with its data takes seconds.
    """
    spec: dict[str, Any] = figure.chart.to_dict(validate=False)
    spec.pop("$schema", None)
    spec.pop("config", None)
    return spec
