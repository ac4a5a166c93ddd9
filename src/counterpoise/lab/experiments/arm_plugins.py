"""Users' functions in an experiment file: in the options of all runs, and in those of arms.

A relative path is looked up in the file's folder, wherever the command is started. A plugin counts
by the content of its file, so another content makes another experiment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from counterpoise import plugins
from counterpoise.config.load import (
    find_plugin_options,
    load_config,
    pin_override,
    takes_plugins,
)
from counterpoise.lab.experiments.design import Design

ArmOptions = Mapping[str, tuple[str, ...]]


def pin_arms(arms: ArmOptions, file: Path) -> dict[str, tuple[str, ...]]:
    """The arms of a file with their plugins pinned."""
    return {
        arm: tuple(
            pin_override(option, file.parent, f"{file}: [experiment.arms] {arm}")
            for option in options
        )
        for arm, options in arms.items()
    }


def display_option(option: str) -> str:
    """section.option=value, with plugins as people write them."""
    name, _, text = option.partition("=")
    section, _, option_name = name.strip().partition(".")
    if not takes_plugins(section, option_name):
        return option
    try:
        value = json.loads(text)
    except ValueError:  # as people write it, so without a pinned plugin
        return option
    shown = plugins.display_names(value)
    return f"{name}={shown if isinstance(shown, str) else json.dumps(shown)}"


def plugin_digests(design: Design) -> dict[str, dict[str, str]]:
    """{arm: {option: digests of its plugins' files}}; arms without plugins are left out."""
    return {
        arm: {
            option: " ".join(plugins.parse_plugin_name(name).digest for name in plugin_names)
            for option, plugin_names in plugins_by_option.items()
        }
        for arm, plugins_by_option in _plugins_by_arm(design).items()
    }


def plugin_files(design: Design) -> dict[Path, Path]:
    """Path relative to the folder of the experiment file -> file, of the plugins in that folder."""
    sources = {
        Path(plugins.parse_plugin_name(name).source)
        for plugins_by_option in _plugins_by_arm(design).values()
        for plugin_names in plugins_by_option.values()
        for name in plugin_names
    }
    folder = Path(design.base).parent.absolute()
    files = {
        source.relative_to(folder): source
        for source in sorted(sources)
        if source.is_relative_to(folder) and source.is_file()
    }
    # "../mine.py" lies outside, and so would its copy.
    return {path: source for path, source in files.items() if ".." not in path.parts}


def _plugins_by_arm(design: Design) -> dict[str, dict[str, tuple[str, ...]]]:
    """{arm: {option: its plugins}}; arms without plugins are left out."""
    plugins_by_arm = {}
    for run_key in design.run_keys()[: len(design.arms)]:
        plugins_by_option = find_plugin_options(
            load_config(design.base, list(design.overrides(run_key)))
        )
        if plugins_by_option:
            plugins_by_arm[run_key.arm] = plugins_by_option
    return plugins_by_arm
