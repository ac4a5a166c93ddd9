"""The table of a comparison: what every run came to, and what that cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from counterpoise.report.compare.compared_runs import ComparedRun
from counterpoise.report.compare.heldout import Evaluation, heldout_by_setting
from counterpoise.report.panels.buffer import wasted_shares
from counterpoise.report.panels.summary import format_duration, wall_seconds


class TableCell(NamedTuple):
    value: str
    small: tuple[str, ...] = ()  # lines below it


class TableLine(NamedTuple):
    """Example: TableLine("rollouts sampled", [Cell("768"), None])"""

    label: str
    cells: list[TableCell | None]  # by run; None: it does not tell
    note: str = ""


def table_lines(compared: Sequence[ComparedRun]) -> list[TableLine]:
    """Lines that some run can fill."""
    lines = []
    for judged in heldout_by_setting(compared):
        places = range(len(compared))
        name = f"held-out success{judged.how}"
        first = [_success(judged.first(place)) for place in places]
        lines += [
            TableLine(f"{name} at first", first, "and its 95 % interval"),
            TableLine(f"{name} at last", [_success(judged.last(place)) for place in places]),
            TableLine("held-out problems", [_problems(judged.first(place)) for place in places]),
        ]
    lines.append(TableLine("iterations", [_iterations(one) for one in compared]))
    lines += [
        TableLine(label, [of(one) if one.run.metrics else None for one in compared], note)
        for label, of, note in COUNT_LINES
    ]
    return [line for line in lines if any(line.cells)]


def _success(e: Evaluation | None) -> TableCell | None:
    if e is None:
        return None
    when = f"after iteration {e['iteration']}" if e["iteration"] else "before training"
    return TableCell(_percent(e["mean"]), (f"{100 * e['low']:.1f} to {_percent(e['high'])}", when))


def _problems(e: Evaluation | None) -> TableCell | None:
    return TableCell(f"{e['prompts']:,}", (f"{e['samples']} responses each",)) if e else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u2009%"


def _iterations(one: ComparedRun) -> TableCell:
    if one.config is None:
        how = "made by" if one.knows_steps else "imported from"
        return TableCell(f"{len(one.run.metrics):,}", (f"{how} {one.source}",))
    wanted = one.config.loop.iterations
    return TableCell(
        f"{one.run.last_iteration:,}",
        (f"of {wanted:,}",) if one.run.last_iteration < wanted else (),
    )


def _sum(metric: str) -> Callable[[ComparedRun], TableCell | None]:
    """Over all iterations; an imported run does not tell all of them."""

    def of(one: ComparedRun) -> TableCell | None:
        if any(metric not in record for record in one.run.metrics):
            return None
        return TableCell(f"{sum(record[metric] for record in one.run.metrics):,}")

    return of


def _updates(one: ComparedRun) -> TableCell | None:
    if not one.knows_steps:
        return None
    return TableCell(f"{sum(record['steps'] > 0 for record in one.run.metrics):,}")


def _wasted(one: ComparedRun) -> TableCell | None:
    shares = wasted_shares(one.run)
    return TableCell(_percent(shares[-1][1])) if shares else None


def _wall(one: ComparedRun) -> TableCell | None:
    if not any("iteration_seconds" in record for record in one.run.metrics):
        return None
    return TableCell(format_duration(wall_seconds(one.run)))


COUNT_LINES: tuple[tuple[str, Callable[[ComparedRun], TableCell | None], str], ...] = (
    ("iterations with an update", _updates, ""),
    ("optimizer steps", _sum("steps"), ""),
    ("rollouts sampled", _sum("rollouts"), ""),
    ("wasted rollouts", _wasted, "no signal, surplus, too old or replaced"),
    ("tokens sampled", _sum("rollout_tokens"), ""),
    ("wall time", _wall, "iterations and evaluations"),
)
