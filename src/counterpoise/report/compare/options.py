"""The options in which runs differ, and what each of the runs was told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from counterpoise.config.load import options, own_functions
from counterpoise.hosts.choose_engine import stored_engine
from counterpoise.plugins import shown_all
from counterpoise.report.charts.render import render
from counterpoise.report.compare.compared_runs import ComparedRun, join_words
from counterpoise.report.panels.panel import Panel
from counterpoise.store.resume import differences


class OptionDifference(NamedTuple):
    """Example: OptionDifference("batch.composer", ['"grouped"', '"shuffled"', None], "which rollouts ...")"""

    name: str
    values: list[str | None]  # of every run; None: not known
    meaning: str


def find_option_differences(compared: Sequence[ComparedRun]) -> list[OptionDifference]:
    """In the order of the run file; the engine, which is no option of it, comes first."""
    known = [one for one in compared if one.config]
    if len(known) < 2:
        return []
    documented = {name: doc for name, _, doc in options()}
    configs = [one.run.config for one in known]
    differ = {name for other in configs[1:] for name, _, _ in differences(configs[0], other)}
    found = [
        OptionDifference(name, _values(compared, name), meaning)
        for name, meaning in documented.items()
        if name in differ
    ]
    engines = [stored_engine(one.run.path) if one.config else None for one in compared]
    if len({engine for engine in engines if engine}) > 1:
        found.insert(0, OptionDifference("--engine", engines, "what trained it"))
    return found


def _values(compared: Sequence[ComparedRun], name: str) -> list[str | None]:
    """Functions of the user's by their file's name; where that is the same, pinned, as stored."""
    section, _, option = name.partition(".")
    values: list[str | None] = []
    short: list[str | None] = []
    for one in compared:
        if one.config is None:
            values.append(None)
            short.append(None)
            continue
        value = getattr(getattr(one.config, section), option)
        values.append(json.dumps(value))
        short.append(json.dumps(shown_all(value) if name in own_functions(one.config) else value))
    return short if len(set(short)) == len(set(values)) else values


def options_panel(compared: Sequence[ComparedRun], differ: Sequence[OptionDifference]) -> Panel:
    unknown = [one.name for one in compared if one.config is None]
    told = (
        f"What the trainer of {join_words(unknown)} was told is not known here" if unknown else ""
    )
    if len(compared) - len(unknown) < 2:
        return Panel("Options", f"{told}: there is nothing to compare.", Markup())
    said = "Those in which the runs differ; all others are equal."
    said = said if differ else "Every option is the same."
    said += f" {told}." if unknown else ""
    body = render("comparison_options.html", runs=compared, options=differ) if differ else Markup()
    return Panel("Options", said, body)
