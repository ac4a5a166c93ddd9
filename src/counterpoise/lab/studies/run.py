"""Run one study: measure, judge, draw, and write everything into a folder.

    NAME.parquet   the tidy table behind the figure, with the settings it was measured at
    NAME.json      our numbers, the paper's, the verdict and the rule it follows from
    NAME.svg .png .html

A study that was already measured at the same settings is not measured again, only judged and drawn.
So an interrupted `poise study all` continues where it stopped, and figures are redrawn without a
model. Records are written before anything is drawn, so that a fault in drawing loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterpoise.files import atomic_write
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.partial_results import PartialResults
from counterpoise.lab.studies.records import read_records, write_records
from counterpoise.lab.studies.study import Study
from counterpoise.statistics.finding import Finding, Record, Records, finding_to_json

BUDGETS = ("quick", "full")


def run_study(
    study: Study, lab: Lab, say: Callable[[str], None], *, again: bool = False
) -> Finding:
    """Measure unless the records are already there, then judge and draw."""
    settings = study_settings(study, lab)
    table_path = lab.out / f"{study.name}.parquet"
    stored_result = None if again else read_records(table_path, settings)
    if stored_result is None:
        partial_path = table_path.with_suffix(".part.parquet")
        # Partial results of an interrupted run are reused, unless `again` asks for a new start.
        if again:
            partial_path.unlink(missing_ok=True)
        records, seconds = _measure(study, lab, PartialResults(partial_path, settings))
        write_records(table_path, records, settings, seconds)
        partial_path.unlink(missing_ok=True)
    else:
        records, seconds = stored_result
        say(f"{study.name}: already measured, using {table_path}")
    finding = study.judge(records)
    write_finding(lab.out / f"{study.name}.json", study, finding, settings, seconds)
    _write_figures(study, records, lab.out, say)
    return finding


def _measure(study: Study, lab: Lab, partial_results: PartialResults) -> tuple[list[Record], float]:
    """(records, seconds). Partial results are saved whatever stops the measurement."""
    lab.sizes, lab.measure_part = study_sizes(study, lab), partial_results
    try:
        records = list(study.measure(lab))
    except BaseException:  # also an interrupt: hours of measurement must not be lost
        partial_results.save()
        raise
    return records, partial_results.seconds


def _write_figures(study: Study, records: Records, out: Path, say: Callable[[str], None]) -> None:
    # Imported here: measuring must work on a machine without drawing packages.
    try:
        from counterpoise.lab.studies.page import write_studies_page
        from counterpoise.report.charts.figures import write_figures

        write_figures(study.draw(records), out, study.name)
        write_studies_page(out, out / f"{study.name}.html", only=study.name)
    except ModuleNotFoundError as fault:
        say(
            f"{study.name}: no figures, {fault.name} is not installed; run the same command where "
            f"it is: it draws them from {out / study.name}.parquet, without the model"
        )


def is_measured(study: Study, lab: Lab) -> bool:
    """True if the study's records exist at the settings of this lab."""
    return read_records(lab.out / f"{study.name}.parquet", study_settings(study, lab)) is not None


def study_settings(study: Study, lab: Lab) -> dict[str, Any]:
    """The settings that the records depend on; a change of any of them means measuring again."""
    return {
        **lab.source_settings,
        "budget": lab.budget,
        "sizes": json.loads(json.dumps(study_sizes(study, lab))),
    }


def study_sizes(study: Study, lab: Lab) -> dict[str, Any]:
    """The sizes of the budget, with those given by `--size` in their place."""
    budget = study.budgets[lab.budget]
    return {
        **budget,
        **{
            size_name: size for size_name, size in lab.size_overrides.items() if size_name in budget
        },
    }


def write_finding(
    path: Path, study: Study, finding: Finding, settings: dict[str, Any], seconds: float
) -> None:
    about = {
        "study": study.name,
        "title": study.title,
        "shows": study.shows,
        "claim": study.claim,
        "rule": study.rule,
        **settings,
    }
    with atomic_write(path) as temporary:
        temporary.write_text(finding_to_json(about, finding, seconds), encoding="utf-8")
