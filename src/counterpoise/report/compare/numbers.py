"""The table of a comparison: what every run came to, and what that cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from counterpoise.report.compare.heldout import Evaluation, settings
from counterpoise.report.compare.run_names import Compared
from counterpoise.report.panels.buffer import wasted
from counterpoise.report.panels.summary import duration, wall_seconds


class Cell(NamedTuple):
    value: str
    small: tuple[str, ...] = ()  # lines below it


class Line(NamedTuple):
    """Example: Line("rollouts sampled", [Cell("768"), None])"""

    label: str
    cells: list[Cell | None]  # by run; None: it does not tell
    note: str = ""


def numbers(compared: Sequence[Compared]) -> list[Line]:
    """Lines that some run can fill."""
    lines = []
    for judged in settings(compared):
        places = range(len(compared))
        name = f"held-out success{judged.how}"
        first = [_success(judged.first(place)) for place in places]
        lines += [
            Line(f"{name} at first", first, "and its 95 % interval"),
            Line(f"{name} at last", [_success(judged.last(place)) for place in places]),
            Line("held-out problems", [_problems(judged.first(place)) for place in places]),
        ]
    lines.append(Line("iterations", [_iterations(one) for one in compared]))
    lines += [
        Line(label, [of(one) if one.run.metrics else None for one in compared], note)
        for label, of, note in COUNTED
    ]
    return [line for line in lines if any(line.cells)]


def _success(e: Evaluation | None) -> Cell | None:
    if e is None:
        return None
    when = f"after iteration {e['iteration']}" if e["iteration"] else "before training"
    return Cell(_percent(e["mean"]), (f"{100 * e['low']:.1f} to {_percent(e['high'])}", when))


def _problems(e: Evaluation | None) -> Cell | None:
    return Cell(f"{e['prompts']:,}", (f"{e['samples']} responses each",)) if e else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u2009%"


def _iterations(one: Compared) -> Cell:
    if one.config is None:
        how = "made by" if one.tells_steps else "imported from"
        return Cell(f"{len(one.run.metrics):,}", (f"{how} {one.source}",))
    wanted = one.config.loop.iterations
    return Cell(f"{one.run.last:,}", (f"of {wanted:,}",) if one.run.last < wanted else ())


def _sum(metric: str) -> Callable[[Compared], Cell | None]:
    """Over all iterations; an imported run does not tell all of them."""

    def of(one: Compared) -> Cell | None:
        if any(metric not in record for record in one.run.metrics):
            return None
        return Cell(f"{sum(record[metric] for record in one.run.metrics):,}")

    return of


def _updates(one: Compared) -> Cell | None:
    if not one.tells_steps:
        return None
    return Cell(f"{sum(record['steps'] > 0 for record in one.run.metrics):,}")


def _wasted(one: Compared) -> Cell | None:
    shares = wasted(one.run)
    return Cell(_percent(shares[-1][1])) if shares else None


def _wall(one: Compared) -> Cell | None:
    if not any("iteration_seconds" in record for record in one.run.metrics):
        return None
    return Cell(duration(wall_seconds(one.run)))


COUNTED: tuple[tuple[str, Callable[[Compared], Cell | None], str], ...] = (
    ("iterations with an update", _updates, ""),
    ("optimizer steps", _sum("steps"), ""),
    ("rollouts sampled", _sum("rollouts"), ""),
    ("wasted rollouts", _wasted, "no signal, surplus, too old or replaced"),
    ("tokens sampled", _sum("rollout_tokens"), ""),
    ("wall time", _wall, "iterations and evaluations"),
)
