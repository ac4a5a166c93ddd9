"""The page that compares several runs: final numbers, differing options, curves in one chart.

Runs are not averaged, even where only their seeds differ: `poise experiment` does that.
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
FEW = 3  # with more names or options, a sentence only counts them


def write_comparison_page(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of these runs; by default to comparison.html in the folder of the first."""
    runs = read_compared_runs(folders)
    with explain_damage(" or ".join(map(str, folders))):
        ends = axis_ends(runs)
        differ = find_option_differences(runs)
        panels = {
            "summary": summary_panel(runs, differ),
            "options": options_panel(runs, differ),
            "learning": learning_panel(runs, ends),
            "batches": batches_panel(runs, ends),
            "cancellation": cancellation_panel(runs, ends),
        }
        bar = render("comparison_bar.html", runs=runs, along={axis: X_AXES[axis] for axis in ends})
        page = assemble_page("Counterpoise runs compared", page_title(runs), panels, bar)
    return write_page(out or folders[0] / "comparison.html", page)


def page_title(runs: Sequence[ComparedRun]) -> str:
    if len(runs) > FEW:
        return f"{len(runs)} runs"
    return join_words([run.name for run in runs])


def summary_panel(runs: Sequence[ComparedRun], differ: Sequence[OptionDifference]) -> Panel:
    configs = [run.config for run in runs if run.config]
    imported = [run.name for run in runs if run.config is None]
    return Panel(
        "",
        "",
        render(
            "comparison_numbers.html",
            runs=runs,
            model=_one(configs, len(runs), lambda config: config.model.name),
            task=_one(configs, len(runs), lambda config: config.task.name),
            imported=join_words(imported) if imported else "",
            differ=[option.name for option in differ],
            few=FEW,
            known=len(configs),
            by_seed=[option.name for option in differ] == [SEED],
            heldout=heldout_by_setting(runs),
            same_problems=same_problems(runs),
            same_reward=same_reward(runs),
            begun=any(run.data.metrics for run in runs),
            lines=table_lines(runs),
        ),
        assets=ASSETS,
    )


def _one(known: Sequence[RunConfig], runs: int, what: Callable[[RunConfig], str]) -> str | None:
    """The value that all runs have in common; None where it differs or is unknown for one."""
    values = {what(config) for config in known}
    return values.pop() if len(known) == runs and len(values) == 1 else None
