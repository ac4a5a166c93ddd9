"""The page of another trainer's run: imported rollouts, and plans if our adapter made them.

`poise import` brings in rollouts only; with `run_folder` of hosts/trl the batch plans are stored
too. There is no config.toml, and without plans there is no token trace either, so the page has only
the panels that do not need them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels import learning, rollouts, timing, words
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import make_visible
from counterpoise.store.folder import RunFolder
from counterpoise.store.imported import ImportOrigin, OptionTables, damaged_origin, read_origin
from counterpoise.variants import PANELS

SUCCESS_CAPTION = "A rollout counts as a success if its reward is above 0."
PROMPTS_CAPTION = (
    "{} is measured on the prompts that a step samples, so it varies with their difficulty."
)
# Panels that need plans.
PLAN_PANELS = ("mosaic", "tokens", "monitor", "heldout", "buffer", "plans")


def read_imported(folder: Path) -> tuple[RunData, ImportOrigin]:
    """The run and its origin.

    The run's configuration holds defaults, except for options that the adapter recorded.
    """
    origin = read_origin(folder)
    metrics, plans = (RunFolder(folder).read(log_name) for log_name in ("metrics", "plans"))
    try:
        config = _config_with(origin.options)
    except TypeError as fault:  # an option that this version does not have
        raise damaged_origin(folder, fault) from fault
    return RunData(folder, config, metrics, plans=plans, evaluations=[]), origin


def _config_with(options: OptionTables) -> RunConfig:
    """A configuration in which only the recorded options differ from the defaults."""
    default_config = RunConfig()
    changed_sections = {
        section_name: replace(getattr(default_config, section_name), **section_options)
        for section_name, section_options in options.items()
    }
    return replace(default_config, **changed_sections)


def write_imported_page(folder: Path, out: Path) -> Path:
    run, origin = read_imported(folder)
    learning_curves = learning.panel(run)
    # These panels need to know the optimizer steps, which imported rollouts do not record.
    plan_panels = (
        {panel_name: PANELS.load(panel_name)(run) for panel_name in PLAN_PANELS}
        if run.plans
        else {}
    )
    panels = {
        "summary": summary_panel(origin, run.metrics, planned=bool(run.plans)),
        "learning": replace(learning_curves, caption=_learning_caption(run))
        if learning_curves
        else None,
        **plan_panels,
        "timing": timing.panel(run),
        "rollouts": rollouts.panel(run),
        "words": words.panel(run),
    }
    return write_page(out, assemble_page("Imported run", run.name, panels))


def _learning_caption(run: RunData) -> str:
    """What the curves show: an imported run has no held-out evaluations to speak of."""
    if run.is_graded:
        return PROMPTS_CAPTION.format("Mean reward")
    return f"{SUCCESS_CAPTION} {PROMPTS_CAPTION.format('Success')}"


def summary_panel(
    origin: ImportOrigin, metrics: list[dict[str, Any]], planned: bool = False
) -> Panel:
    """Panel at the top of the page.

    A line of metrics is one step of the trainer; in a run with plans it is one generation of
    rollouts, which may span several optimizer steps.
    """
    counted_fields = [("rollouts", "rollouts"), ("groups", "groups"), ("tokens", "rollout_tokens")]
    # With plans the optimizer steps are known, and more telling than the number of groups.
    if planned:
        counted_fields[1] = ("optimizer steps", "steps")
    facts = (
        ("generations" if planned else "steps", len(metrics)),
        *(
            (meaning, sum(record[field_name] for record in metrics))
            for meaning, field_name in counted_fields
        ),
    )
    return Panel(
        "",
        "",
        render(
            "imported.html",
            source=origin.source,
            notes=[make_visible(note) for note in origin.notes],
            facts=facts,
            planned=planned,
        ),
        assets=("summary.css",),
    )
