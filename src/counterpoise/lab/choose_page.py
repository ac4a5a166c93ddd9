"""`poise report`: find out what a folder holds and write the matching page."""

from __future__ import annotations

import os
from pathlib import Path

from counterpoise.errors import PoiseError, explain_damage
from counterpoise.hosts.importing.formats import explain_foreign_run
from counterpoise.lab.evaluate.page import write_evaluation_page
from counterpoise.lab.evaluate.result_files import is_evaluation
from counterpoise.lab.studies.page import read_results, write_studies_page
from counterpoise.report.pages.imported import write_imported_page
from counterpoise.report.pages.run import write_run_page
from counterpoise.store.folder import is_imported, is_run


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run, an evaluation or studies; by default to FOLDER/report.html."""
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise PoiseError(f"{folder} {problem}: name the folder of a run, an evaluation or studies")
    target = out or folder / "report.html"
    with explain_damage(folder):
        if is_run(folder):
            return write_run_page(folder, target)
        if is_imported(folder):
            return write_imported_page(folder, target)
        if is_evaluation(folder):
            return write_evaluation_page(folder, target)
        if read_results(folder):
            return write_studies_page(folder, target)
    inside = next((child for child in sorted(folder.glob("*/")) if _has_a_page(child)), None)
    if not inside and (explanation := explain_foreign_run(folder, "report")):
        raise PoiseError(explanation)
    raise PoiseError(
        f"{folder} holds no run, no studies and no evaluation: there is no config.toml, no "
        "NAME.json of a study and no evaluation.json" + (f"; try {inside}" if inside else "")
    )


def _has_a_page(folder: Path) -> bool:
    """Whether `poise report` can show the folder, judging by the presence of one file."""
    kinds = (is_run, is_imported, is_evaluation)
    return os.access(folder, os.X_OK) and any(kind(folder) for kind in kinds)
