"""`poise report`: a folder in, the page of what it holds out."""

from __future__ import annotations

import os
from pathlib import Path

from counterpoise.errors import PoiseError, explain_damage
from counterpoise.hosts.importing.formats import wrote
from counterpoise.lab.evaluate.page import write_evaluation_page
from counterpoise.lab.evaluate.result_files import is_evaluation
from counterpoise.lab.studies.page import found_in, write_studies
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.pages.imported import write_imported_page
from counterpoise.report.run_data import RunData
from counterpoise.store.folder import is_imported, is_run
from counterpoise.variants import PANELS


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run, an evaluation or a folder of studies; default FOLDER/report.html."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise PoiseError(f"{folder} {what}: name the folder of a run, an evaluation or studies")
    target = out or folder / "report.html"
    with explain_damage(folder):
        if is_run(folder):
            return write_run_page(folder, target)
        if is_imported(folder):
            return write_imported_page(folder, target)
        if is_evaluation(folder):
            return write_evaluation_page(folder, target)
        if found_in(folder):
            return write_studies(folder, target)
    inside = next((child for child in sorted(folder.glob("*/")) if _has_a_page(child)), None)
    writer = wrote(folder)
    if writer and not inside:
        raise PoiseError(
            f"{folder} holds rollouts that {writer} wrote: bring them in by poise import {folder} "
            "--out DIR, then poise report DIR"
        )
    raise PoiseError(
        f"{folder} holds no run and no studies, nor an evaluation: config.toml, NAME.json of a "
        "study, evaluation.json, none is there" + (f"; try {inside}" if inside else "")
    )


def _has_a_page(folder: Path) -> bool:
    """Of a kind that one file tells; a folder that may not be entered has none."""
    kinds = (is_run, is_imported, is_evaluation)
    return os.access(folder, os.X_OK) and any(kind(folder) for kind in kinds)


def write_run_page(folder: Path, out: Path) -> Path:
    run = RunData.read(folder)
    panels = {name: PANELS.load(name)(run) for name in PANELS}
    return write_page(out, assemble_page("Counterpoise run", run.name, panels))
