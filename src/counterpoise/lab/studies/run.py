"""Run one study: measure, judge, draw, and write everything into a folder.

    NAME.parquet   the tidy table behind the figure, with the settings it was measured at
    NAME.json      our numbers, the paper's, the verdict and the rule it follows from
    NAME.svg .png .html

A study that was already measured at the same settings is not measured again, only judged and drawn.
So an interrupted `poise study all` continues where it stopped, and figures are redrawn without a
model. Records are written before anything is drawn, so that a fault in drawing loses nothing, and a
table of other settings is set aside, not replaced (records.py). `judge_records` judges a table from
anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterpoise.errors import UNEXPECTED_VALUE_ERRORS, PoiseError, first_line
from counterpoise.files import atomic_write
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.partial_results import PartialResults
from counterpoise.lab.studies.records import (
    has_records,
    read_table,
    restore_records,
    set_aside,
    write_records,
)
from counterpoise.lab.studies.stored_rollouts import digest_groups
from counterpoise.lab.studies.study import Study
from counterpoise.statistics.finding import Finding, Record, Records, finding_to_json

BUDGETS = ("quick", "full")


def run_study(
    study: Study, lab: Lab, say: Callable[[str], None], *, again: bool = False
) -> Finding:
    """Measure unless the records are already there, then judge and draw."""
    settings = study_settings(study, lab)
    table_path = lab.out / f"{study.name}.parquet"
    if not again and is_measured(study, lab):
        restore_records(table_path, settings)
        say(f"{study.name}: already measured, using {table_path}")
    else:
        parts = partial_results(study, lab)
        # Parts that an interrupted command left are reused, unless `again` asks for a new start.
        if again:
            parts.remove()
        records, seconds = _measure(study, lab, parts)
        set_aside(table_path, settings)
        write_records(table_path, records, settings, seconds, study.name)
        parts.remove()
    # Read back even just after measuring: the table fills missing keys of a record with None.
    table = read_table(table_path)
    finding = study.judge(table.records)
    write_finding(lab.out / f"{study.name}.json", study, finding, settings, table.seconds)
    _write_figures(study, table.records, lab.out, say)
    return finding


def judge_records(study: Study, table_path: Path, out: Path, say: Callable[[str], None]) -> Finding:
    """Judge and draw stored records, with a copy of their table in `out`; nothing is measured."""
    if not table_path.is_file():
        raise PoiseError(f"--records {table_path}: there is no such file")
    own_path = out / f"{study.name}.parquet"
    content = table_path.read_bytes()
    if own_path.is_file() and own_path.read_bytes() != content:
        raise PoiseError(f"{own_path} holds other records: choose another --out")
    table = read_table(table_path)
    if table.study not in ("", study.name):
        raise PoiseError(f"{table_path} holds records of the study {table.study}")
    try:
        finding = study.judge(table.records)
    # Tables of earlier versions do not name their study.
    except UNEXPECTED_VALUE_ERRORS as fault:
        raise PoiseError(
            f"{table_path} holds no records that the study {study.name} can judge: "
            f"{type(fault).__name__} {first_line(fault)}"
        ) from fault
    make_study_folder(out)
    if not own_path.is_file():
        with atomic_write(own_path) as temporary:
            temporary.write_bytes(content)
    write_finding(out / f"{study.name}.json", study, finding, table.settings, table.seconds)
    _write_figures(study, table.records, out, say)
    return finding


def make_study_folder(out: Path) -> None:
    """Make the folder for results unless it is there; an error says why it cannot be used."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise PoiseError(f"{out} cannot be used: {fault.strerror}") from fault


def partial_results(study: Study, lab: Lab) -> PartialResults:
    """The parts of the study that an interrupted command left in the lab's folder."""
    path = lab.out / f"{study.name}.part.parquet"
    return PartialResults(path, study_settings(study, lab))


def _measure(study: Study, lab: Lab, parts: PartialResults) -> tuple[list[Record], float]:
    """(records, seconds). Parts are saved whatever stops the measurement."""
    lab.sizes, lab.measure_part = study_sizes(study, lab), parts
    try:
        records = list(study.measure(lab))
    except BaseException:  # also an interrupt: hours of measurement must not be lost
        parts.save()
        raise
    return records, parts.seconds


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
    """Whether the study's records exist at the settings of this lab.

    If there are partial results too, a later command with --again was interrupted: then the study
    counts as not measured, so that it continues.
    """
    table_path = lab.out / f"{study.name}.parquet"
    is_stored = has_records(table_path, study_settings(study, lab))
    return is_stored and not partial_results(study, lab).is_begun


def study_settings(study: Study, lab: Lab) -> dict[str, Any]:
    """The settings that the records depend on; a change of any of them means measuring again."""
    sizes = study_sizes(study, lab)
    settings = {
        **lab.source_settings,
        "budget": lab.budget,
        "sizes": json.loads(json.dumps(sizes)),
    }
    # The rollouts at a path may change, like the weights at a path. Only the groups that the study
    # uses count.
    if lab.rollouts:
        used_groups = lab.stored_groups[: sizes["prompts"] * sizes.get("batches", 1)]
        settings["rollouts_digest"] = digest_groups(used_groups)
    return settings


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
