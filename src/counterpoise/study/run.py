"""`poise study`: measure, judge, draw, and leave everything in a folder.

    NAME.parquet   the tidy table behind the figure, with the settings it was measured at
    NAME.json      our numbers, the paper's, the verdict and the rule it follows from
    NAME.svg .png .html

A study that was measured at the same settings is not measured again, only judged and drawn; so an
interrupted `poise study all` goes on where it stopped, and figures are redrawn without a model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise import __version__
from counterpoise.errors import PoiseError
from counterpoise.statistics.finding import Finding, Record
from counterpoise.store.atomic import replacing
from counterpoise.study import STUDIES
from counterpoise.study.lab import Lab
from counterpoise.study.study import Study

SCHEMA = 1
BUDGETS = ("quick", "full")


def load_study(name: str) -> Study:
    """By its name in the table; an unknown one gets a suggestion."""
    return cast(Study, STUDIES.load(name))


def run_study(
    study: Study, lab: Lab, say: Callable[[str], None], *, again: bool = False
) -> Finding:
    """Measure unless that was done, then judge and draw."""
    settings = settings_of(study, lab)
    table = lab.out / f"{study.name}.parquet"
    saved = None if again else read_records(table, settings)
    if saved is None:
        start = time.perf_counter()
        lab.sizes = study.budgets[lab.budget]
        saved = list(study.measure(lab)), time.perf_counter() - start
        write_records(table, saved[0], settings, saved[1])
    else:
        say(f"{study.name}: measured before, in {table}")
    records, seconds = saved
    finding = study.judge(records)
    write_finding(lab.out / f"{study.name}.json", study, finding, settings, seconds)

    from counterpoise.report.figures import write_figures
    from counterpoise.report.studies import write_studies

    write_figures(study.draw(records), lab.out, study.name)
    write_studies(lab.out, lab.out / f"{study.name}.html", only=study.name)
    return finding


def measured(study: Study, lab: Lab) -> bool:
    """Whether its records are there, at the settings of this lab."""
    return read_records(lab.out / f"{study.name}.parquet", settings_of(study, lab)) is not None


def settings_of(study: Study, lab: Lab) -> dict[str, Any]:
    """What the records depend on; measured again when any of it changes."""
    return {
        "model": lab.model,
        "budget": lab.budget,
        "seed": lab.seed,
        "sizes": json.loads(json.dumps(study.budgets[lab.budget])),
        **({"rollouts": str(lab.rollouts)} if lab.rollouts else {}),
    }


def write_records(
    path: Path, records: list[Record], settings: dict[str, Any], seconds: float
) -> None:
    if not records:
        raise PoiseError(f"study {path.stem} measured nothing: the batch had no signal")
    names = list(dict.fromkeys(name for record in records for name in record))
    table = pa.table({name: [record.get(name) for record in records] for name in names})
    meta = {
        "counterpoise_schema": str(SCHEMA),
        "settings": json.dumps(settings),
        "seconds": f"{seconds:.1f}",
    }
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata(meta), temporary)


def read_records(
    path: Path, settings: dict[str, Any] | None = None
) -> tuple[list[Record], float] | None:
    """(records, seconds they took); None when absent or, given settings, measured at others."""
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
        meta = {
            key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()
        }
        if settings is not None and json.loads(meta["settings"]) != settings:
            return None
        return table.to_pylist(), float(meta["seconds"])
    except (pa.ArrowException, KeyError, ValueError) as fault:
        raise PoiseError(f"{path} is damaged: {fault}; remove it to measure again") from fault


def write_finding(
    path: Path, study: Study, finding: Finding, settings: dict[str, Any], seconds: float
) -> None:
    found = {
        "schema": SCHEMA,
        "study": study.name,
        "title": study.title,
        "shows": study.shows,
        "claim": study.claim,
        "rule": study.rule,
        **settings,
        **asdict(finding),
        "seconds": round(seconds, 1),
        "version": __version__,
    }
    whole = json.loads(json.dumps(found), parse_constant=lambda _: None)  # nan is not JSON
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(whole, indent=1, ensure_ascii=False), encoding="utf-8")
