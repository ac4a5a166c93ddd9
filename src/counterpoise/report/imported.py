"""The page of a run that another trainer made (`poise import`): what rollouts alone can show.

There is no config.toml, no plan and no token trace, so of a run's panels only those remain that
need none of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.report import learning, rollouts
from counterpoise.report.assemble import whole_page, write_page
from counterpoise.report.panel import Panel
from counterpoise.report.render import render
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import visible
from counterpoise.store.folder import IMPORTED, RunFolder

SUCCESS = (
    "A rollout counts as a success when its reward is above 0. Success is measured on the prompts "
    "a step samples, so it varies with their difficulty."
)


def read_imported(folder: Path) -> tuple[RunData, str, list[str]]:
    """The run (its configuration says nothing of the other trainer), who wrote it, and notes."""
    try:
        known = json.loads((folder / IMPORTED).read_text(encoding="utf-8"))
        metrics = RunFolder(folder).read("metrics")
        source, notes = str(known["source"]), [str(note) for note in known["notes"]]
    except (ValueError, KeyError, TypeError) as fault:
        raise PoiseError(f"{folder} is damaged: {fault}; import the run again") from fault
    return RunData(folder, RunConfig(), metrics, plans=[], evaluations=[]), source, notes


def write_imported(folder: Path, out: Path) -> Path:
    run, source, notes = read_imported(folder)
    curves = learning.panel(run)
    panels = {
        "summary": summary(source, notes, run.metrics),
        "learning": curves and replace(curves, caption=SUCCESS),
        "rollouts": rollouts.panel(run),
    }
    return write_page(out, whole_page("Imported run", run.name, panels))


def summary(source: str, notes: list[str], metrics: list[dict[str, Any]]) -> Panel:
    counted = (
        ("steps", len(metrics)),
        *(
            (meaning, sum(record[name] for record in metrics))
            for meaning, name in (
                ("rollouts", "rollouts"),
                ("groups", "groups"),
                ("tokens", "rollout_tokens"),
            )
        ),
    )
    return Panel(
        "",
        "",
        render(
            "imported.html", source=source, notes=[visible(note) for note in notes], facts=counted
        ),
        assets=("summary.css",),
    )
