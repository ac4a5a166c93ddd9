"""The options in which runs differ, with the value of each run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from counterpoise.config.load import find_plugin_options, list_options
from counterpoise.hosts.choose_engine import stored_engine
from counterpoise.plugins import display_names
from counterpoise.report.charts.render import render
from counterpoise.report.compare.compared_runs import ComparedRun, join_words
from counterpoise.report.panels.panel import Panel
from counterpoise.store.resume import config_differences


class OptionDifference(NamedTuple):
    """One option and its value in every run.

    Example:
        OptionDifference("batch.composer", ['"grouped"', '"shuffled"', None], "which rollouts ...")
    """

    name: str
    values: list[str | None]  # by run; None: unknown
    meaning: str


def find_option_differences(runs: Sequence[ComparedRun]) -> list[OptionDifference]:
    """Differing options in the order of the run file, after the engine, which is not in it."""
    configured = [run for run in runs if run.config]
    if len(configured) < 2:
        return []
    documented = {name: meaning for name, _, meaning in list_options()}
    configs = [run.data.config for run in configured]
    differing_names = {
        name for config in configs[1:] for name, _, _ in config_differences(configs[0], config)
    }
    differing = [
        OptionDifference(name, _values(runs, name), meaning)
        for name, meaning in documented.items()
        if name in differing_names
    ]
    engines = [stored_engine(run.data.path) if run.config else None for run in runs]
    if len({engine for engine in engines if engine}) > 1:
        differing.insert(0, OptionDifference("--engine", engines, "what trained it"))
    return differing


def _values(runs: Sequence[ComparedRun], name: str) -> list[str | None]:
    """Values of one option as JSON.

    A user's own function is shown by its file name; where only the file's content differs, with the
    stored digest.
    """
    section, _, option = name.partition(".")
    values: list[str | None] = []
    short_values: list[str | None] = []
    for run in runs:
        if run.config is None:
            values.append(None)
            short_values.append(None)
            continue
        value = getattr(getattr(run.config, section), option)
        values.append(json.dumps(value))
        short_values.append(
            json.dumps(display_names(value) if name in find_plugin_options(run.config) else value)
        )
    return short_values if len(set(short_values)) == len(set(values)) else values


def options_panel(runs: Sequence[ComparedRun], differ: Sequence[OptionDifference]) -> Panel:
    unknown = [run.name for run in runs if run.config is None]
    unknown_note = f"The options of {join_words(unknown)} are unknown" if unknown else ""
    if len(runs) - len(unknown) < 2:
        return Panel("Options", f"{unknown_note}: there is nothing to compare.", Markup())
    caption = "Options in which the runs differ; all others are equal."
    caption = caption if differ else "All options are equal."
    caption += f" {unknown_note}." if unknown else ""
    body = render("comparison_options.html", runs=runs, options=differ) if differ else Markup()
    return Panel("Options", caption, body)
