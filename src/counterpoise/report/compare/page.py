"""The page that compares several runs: final numbers, differing options, curves in one chart.

Runs are not averaged, even where only their seeds differ: `poise experiment` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.errors import explain_damage
from counterpoise.report.charts.render import render
from counterpoise.report.charts.vega import trusted_charts
from counterpoise.report.compare.compared_runs import ComparedRun, join_words, read_compared_runs
from counterpoise.report.compare.curves import batches_panel, cancellation_panel, learning_panel
from counterpoise.report.compare.heldout import (
    any_graded,
    heldout_by_setting,
    same_problems,
    same_reward,
)
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
SEED_OPTION = "loop.seed"
MAX_NAMES = 3  # with more runs or options, a sentence gives their number instead of their names


def write_comparison_page(folders: Sequence[Path], target: Path | None = None) -> Path:
    """Write the page of these runs; by default to comparison.html in the folder of the first."""
    runs = read_compared_runs(folders)
    with explain_damage(" or ".join(map(str, folders))), trusted_charts():
        x_ends = axis_ends(runs)
        differences = find_option_differences(runs)
        panels = {
            "summary": summary_panel(runs, differences),
            "options": options_panel(runs, differences),
            "learning": learning_panel(runs, x_ends),
            "batches": batches_panel(runs, x_ends),
            "cancellation": cancellation_panel(runs, x_ends),
        }
        controls_bar = render(
            "comparison_bar.html",
            runs=runs,
            along={axis_name: X_AXES[axis_name] for axis_name in x_ends},
        )
        page_html = assemble_page(
            "Counterpoise runs compared", page_title(runs), panels, controls_bar
        )
    return write_page(target or folders[0] / "comparison.html", page_html)


def page_title(runs: Sequence[ComparedRun]) -> str:
    if len(runs) > MAX_NAMES:
        return f"{len(runs)} runs"
    return join_words([run.name for run in runs])


def summary_panel(runs: Sequence[ComparedRun], differences: Sequence[OptionDifference]) -> Panel:
    configs = [run.config for run in runs if run.config]
    imported_names = [run.name for run in runs if run.config is None]
    return Panel(
        "",
        "",
        render(
            "comparison_numbers.html",
            runs=runs,
            model=_common_value(configs, len(runs), lambda config: config.model.name),
            task=_common_value(configs, len(runs), lambda config: config.task.name),
            imported=join_words(imported_names) if imported_names else "",
            differ=[option.name for option in differences],
            few=MAX_NAMES,
            known=len(configs),
            by_seed=[option.name for option in differences] == [SEED_OPTION],
            heldout=heldout_by_setting(runs),
            same_problems=same_problems(runs),
            same_reward=same_reward(runs),
            graded=any_graded(runs),
            begun=any(run.data.metrics for run in runs),
            lines=table_lines(runs),
        ),
        assets=ASSETS,
    )


def _common_value(
    configs: Sequence[RunConfig], run_count: int, read_value: Callable[[RunConfig], str]
) -> str | None:
    """The value that all runs have in common; None if it differs or is unknown for one of them."""
    values = {read_value(config) for config in configs}
    return values.pop() if len(configs) == run_count and len(values) == 1 else None
