"""The page of a run, `poise report`: the panels of PANELS in variants.py, one after another."""

from __future__ import annotations

from pathlib import Path

from counterpoise.report.charts.vega import trusted_charts
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.run_data import RunData
from counterpoise.variants import PANELS


def write_run_page(folder: Path, out: Path) -> Path:
    run = RunData.read(folder)
    with trusted_charts():
        panels = {name: PANELS.load(name)(run) for name in PANELS}
        page_html = assemble_page("Counterpoise run", run.name, panels)
    return write_page(out, page_html)
