"""The page of a run that another trainer made: what rollouts alone can show (`poise import`), and
where our adapter planned its batches and kept them (`run_folder` of hosts/trl), those too.

There is no config.toml. Without plans there is no token trace either, so of a run's panels only
those remain that need none of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels import learning, rollouts
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import make_visible
from counterpoise.store.folder import IMPORTED, RunFolder
from counterpoise.variants import PANELS

SUCCESS_CAPTION = (
    "A rollout counts as a success when its reward is above 0. Success is measured on the prompts "
    "a step samples, so it varies with their difficulty."
)
PLAN_PANELS = ("mosaic", "tokens", "monitor", "buffer", "plans")  # panels of what plans tell


def read_imported(folder: Path) -> tuple[RunData, str, list[str]]:
    """The run (its configuration says nothing of the other trainer), who wrote it, and notes."""
    try:
        known = json.loads((folder / IMPORTED).read_text(encoding="utf-8"))
        metrics, plans = (RunFolder(folder).read(log) for log in ("metrics", "plans"))
        config = _known(known.get("options", {}))
        source, notes = str(known["source"]), [str(note) for note in known["notes"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        why = first_line(fault)
        raise PoiseError(f"{folder} is damaged: {why}; import the run again") from fault
    return RunData(folder, config, metrics, plans=plans, evaluations=[]), source, notes


def _known(options: dict[str, dict[str, Any]]) -> RunConfig:
    """A configuration in which only what is told differs from the defaults."""
    default = RunConfig()
    told = {name: replace(getattr(default, name), **values) for name, values in options.items()}
    return replace(default, **told)


def write_imported_page(folder: Path, out: Path) -> Path:
    run, source, notes = read_imported(folder)
    curves = learning.panel(run)
    of_plans = {name: PANELS.load(name)(run) for name in PLAN_PANELS} if run.plans else {}
    panels = {
        "summary": summary_panel(source, notes, run.metrics, planned=bool(run.plans)),
        "learning": curves and replace(curves, caption=SUCCESS_CAPTION),
        **of_plans,
        "rollouts": rollouts.panel(run),
    }
    return write_page(out, assemble_page("Imported run", run.name, panels))


def summary_panel(
    source: str, notes: list[str], metrics: list[dict[str, Any]], planned: bool = False
) -> Panel:
    """Of an import a line is a training step; of a run that was planned, a generation."""
    names = [("rollouts", "rollouts"), ("groups", "groups"), ("tokens", "rollout_tokens")]
    if planned:
        names[1] = ("optimizer steps", "steps")
    counted = (
        ("generations" if planned else "steps", len(metrics)),
        *((meaning, sum(record[name] for record in metrics)) for meaning, name in names),
    )
    return Panel(
        "",
        "",
        render(
            "imported.html",
            source=source,
            notes=[make_visible(note) for note in notes],
            facts=counted,
            planned=planned,
        ),
        assets=("summary.css",),
    )
