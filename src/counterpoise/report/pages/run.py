"""The page of a run, `poise report`: the panels of PANELS in variants.py, one after another."""

from __future__ import annotations

from pathlib import Path

from counterpoise.report.charts.vega import trusted_charts
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.run_data import RunData
from counterpoise.store.folder import REPLAY
from counterpoise.variants import PANELS


def write_run_page(folder: Path, out: Path) -> Path:
    run = RunData.read(folder)
    with trusted_charts():
        panels = {name: PANELS.load(name)(run) for name in PANELS}
        kind = "Counterpoise replay" if (folder / REPLAY).is_file() else "Counterpoise run"
        page_html = assemble_page(kind, run.name, panels)
    return write_page(out, page_html)
