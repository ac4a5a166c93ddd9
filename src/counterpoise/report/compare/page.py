"""The page of several runs: final numbers, options that differ, every curve over the others.

Runs are not averaged, also where only their seed differs: that is `poise experiment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.errors import explain_damage
from counterpoise.report.charts.render import render
from counterpoise.report.compare.curves import batches, cancellation, learning
from counterpoise.report.compare.heldout import same_problems, same_reward, settings
from counterpoise.report.compare.numbers import numbers
from counterpoise.report.compare.options import Option, options_panel, options_that_differ
from counterpoise.report.compare.overlay import ALONG, ends
from counterpoise.report.compare.run_names import Compared, listed, read_compared
from counterpoise.report.pages.assemble import whole_page, write_page
from counterpoise.report.panels.panel import Panel

ASSETS = ("summary.css", "comparison.css", "comparison.js")
SEED = "loop.seed"
FEW = 3  # names and options that a sentence still takes


def write_comparison(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of these runs; by default to comparison.html in the folder of the first."""
    compared = read_compared(folders)
    with explain_damage(" or ".join(map(str, folders))):
        last = ends(compared)
        differ = options_that_differ(compared)
        panels = {
            "summary": summary(compared, differ),
            "options": options_panel(compared, differ),
            "learning": learning(compared, last),
            "batches": batches(compared, last),
            "cancellation": cancellation(compared, last),
        }
        bar = render("comparison_bar.html", runs=compared, along={k: ALONG[k] for k in last})
        page = whole_page("Counterpoise runs compared", title(compared), panels, bar)
    return write_page(out or folders[0] / "comparison.html", page)


def title(compared: Sequence[Compared]) -> str:
    if len(compared) > FEW:
        return f"{len(compared)} runs"
    return listed([one.name for one in compared])


def summary(compared: Sequence[Compared], differ: Sequence[Option]) -> Panel:
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
            imported=listed(imported) if imported else "",
            differ=[option.name for option in differ],
            few=FEW,
            known=len(known),
            by_seed=[option.name for option in differ] == [SEED],
            judgements=settings(compared),
            same_problems=same_problems(compared),
            same_reward=same_reward(compared),
            begun=any(one.run.metrics for one in compared),
            lines=numbers(compared),
        ),
        assets=ASSETS,
    )


def _one(known: Sequence[RunConfig], runs: int, what: Callable[[RunConfig], str]) -> str | None:
    """What all runs have in common, if it is known of all and they do."""
    found = {what(config) for config in known}
    return found.pop() if len(known) == runs and len(found) == 1 else None
