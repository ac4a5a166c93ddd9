"""The page of several runs: final numbers, options that differ, every curve over the others.

Runs are not averaged, also where only their seed differs: that is `poise experiment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.errors import explain_damage
from counterpoise.report.charts.render import render
from counterpoise.report.compare.compared_runs import ComparedRun, join_words, read_compared_runs
from counterpoise.report.compare.curves import batches_panel, cancellation_panel, learning_panel
from counterpoise.report.compare.heldout import heldout_by_setting, same_problems, same_reward
from counterpoise.report.compare.numbers import table_lines
from counterpoise.report.compare.options import (
    OptionDifference,
    find_option_differences,
    options_panel,
)
from counterpoise.report.compare.overlay import X_AXES, axis_ends
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels.panel import Panel

ASSETS = ("summary.css", "comparison.css", "comparison.js")
SEED = "loop.seed"
FEW = 3  # names and options that a sentence still takes


def write_comparison_page(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of these runs; by default to comparison.html in the folder of the first."""
    compared = read_compared_runs(folders)
    with explain_damage(" or ".join(map(str, folders))):
        last = axis_ends(compared)
        differ = find_option_differences(compared)
        panels = {
            "summary": summary_panel(compared, differ),
            "options": options_panel(compared, differ),
            "learning": learning_panel(compared, last),
            "batches": batches_panel(compared, last),
            "cancellation": cancellation_panel(compared, last),
        }
        bar = render("comparison_bar.html", runs=compared, along={k: X_AXES[k] for k in last})
        page = assemble_page("Counterpoise runs compared", page_title(compared), panels, bar)
    return write_page(out or folders[0] / "comparison.html", page)


def page_title(compared: Sequence[ComparedRun]) -> str:
    if len(compared) > FEW:
        return f"{len(compared)} runs"
    return join_words([one.name for one in compared])


def summary_panel(compared: Sequence[ComparedRun], differ: Sequence[OptionDifference]) -> Panel:
    known = [one.config for one in compared if one.config]
    imported = [one.name for one in compared if one.config is None]
    return Panel(
        "",
        "",
        render(
            "comparison_numbers.html",
            runs=compared,
            model=_one(known, len(compared), lambda config: config.model.name),
            task=_one(known, len(compared), lambda config: config.task.name),
            imported=join_words(imported) if imported else "",
            differ=[option.name for option in differ],
            few=FEW,
            known=len(known),
            by_seed=[option.name for option in differ] == [SEED],
            judgements=heldout_by_setting(compared),
            same_problems=same_problems(compared),
            same_reward=same_reward(compared),
            begun=any(one.run.metrics for one in compared),
            lines=table_lines(compared),
        ),
        assets=ASSETS,
    )


def _one(known: Sequence[RunConfig], runs: int, what: Callable[[RunConfig], str]) -> str | None:
    """What all runs have in common, if it is known of all and they do."""
    found = {what(config) for config in known}
    return found.pop() if len(known) == runs and len(found) == 1 else None
