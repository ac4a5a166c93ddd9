"""Panel of the run's options: those that differ from their default, the full file, versions."""

from __future__ import annotations

import json
import sys

from counterpoise import __version__
from counterpoise.config import RunConfig
from counterpoise.config.load import find_plugin_options, list_options, to_toml
from counterpoise.hosts.check_versions import installed_version
from counterpoise.plugins import display_names
from counterpoise.report.charts.render import render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.store.resume import config_differences

PACKAGES = ("torch", "transformers", "numpy", "altair", "vl-convert-python")


def panel(run: RunData) -> Panel:
    option_meanings = {option_name: meaning for option_name, _, meaning in list_options()}
    # A user's own function is shown by its file name, without the stored digest.
    plugin_options = find_plugin_options(run.config)
    changed_options = [
        (
            option_name,
            json.dumps(display_names(run_value) if option_name in plugin_options else run_value),
            json.dumps(default_value),
            option_meanings[option_name],
        )
        for option_name, default_value, run_value in config_differences(RunConfig(), run.config)
    ]
    return Panel(
        "Configuration",
        "Options that differ from their default. The resolved config.toml below has all of them.",
        render(
            "configuration.html",
            changed=changed_options,
            toml=to_toml(run.config),
            versions=[("counterpoise", __version__)]
            + [(package, installed_version(package) or "not installed") for package in PACKAGES]
            + [("python", sys.version.split()[0])],
        ),
    )
