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
    """The options that differ, in the order of the run file.

    The engine comes first: it is an option of the command and not in the run file.
    """
    configured_runs = [run for run in runs if run.config]
    if len(configured_runs) < 2:
        return []
    option_meanings = {option_name: meaning for option_name, _, meaning in list_options()}
    configs = [run.data.config for run in configured_runs]
    differing_names = {
        option_name
        for config in configs[1:]
        for option_name, _, _ in config_differences(configs[0], config)
    }
    differences = [
        OptionDifference(option_name, _option_values(runs, option_name), meaning)
        for option_name, meaning in option_meanings.items()
        if option_name in differing_names
    ]
    engines = [stored_engine(run.data.path) if run.config else None for run in runs]
    if len({engine for engine in engines if engine}) > 1:
        differences.insert(0, OptionDifference("--engine", engines, "which trainer ran it"))
    return differences


def _option_values(runs: Sequence[ComparedRun], option_path: str) -> list[str | None]:
    """Values of one option as JSON.

    A user's own function is shown by its file name. If two runs differ only in the content of that
    file, its stored digest is shown too.
    """
    section_name, _, option_name = option_path.partition(".")
    values: list[str | None] = []
    short_values: list[str | None] = []
    for run in runs:
        if run.config is None:
            values.append(None)
            short_values.append(None)
            continue
        value = getattr(getattr(run.config, section_name), option_name)
        values.append(json.dumps(value))
        short_values.append(
            json.dumps(
                display_names(value) if option_path in find_plugin_options(run.config) else value
            )
        )
    return short_values if len(set(short_values)) == len(set(values)) else values


def options_panel(runs: Sequence[ComparedRun], differences: Sequence[OptionDifference]) -> Panel:
    imported_names = [run.name for run in runs if run.config is None]
    unknown_note = (
        f"The options of {join_words(imported_names)} are unknown" if imported_names else ""
    )
    if len(runs) - len(imported_names) < 2:
        return Panel("Options", f"{unknown_note}: there is nothing to compare.", Markup())
    if differences:
        caption = "Options in which the runs differ; all others are equal."
        table_html = render("comparison_options.html", runs=runs, options=differences)
    else:
        caption, table_html = "All options are equal.", Markup()
    if imported_names:
        caption += f" {unknown_note}."
    return Panel("Options", caption, table_html)
