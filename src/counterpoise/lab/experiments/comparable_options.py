"""The options of an arm's runs in a form in which two experiments can be compared.

The seed is left out, and so are paths, since they differ between folders and machines: the model
and the problems have digests of their own, and functions count by the content of their files.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, NamedTuple

from counterpoise import plugins
from counterpoise.config.load import find_plugin_options, load_config
from counterpoise.lab.experiments.design import Design, RunKey

PATHS = (("model", "name"), ("task", "path"), ("task", "heldout_path"))
# Sections that do not change what a step of a run does: a pilot may be shorter, or look less.
NOT_OF_A_STEP = ("loop", "evaluate", "monitor", "store", "track")


class TrainedArm(NamedTuple):
    """What the runs of an experiment have in common, except for their seeds.

    Example:
        TrainedArm("QB", 1e-6, lr=3e-6)     # tables call the rate 1e-6, and the pilot chose 3e-6
    """

    arm: str
    rate: float
    lr: float | None  # the rate that a pilot chose; None where the file fixes it


def comparable_options(design: Design, trained_arm: TrainedArm) -> dict[str, Any]:
    """section -> option -> value; of a function the name and the digest of its file."""
    arm, rate, lr = trained_arm
    design = replace(design, arm_rates={} if lr is None else {arm: lr})
    config = load_config(design.base, list(design.overrides(RunKey(arm, rate, seed=0))))
    options = asdict(config)
    for option in find_plugin_options(config):
        section, _, name = option.partition(".")
        value = options[section][name]
        names = value if isinstance(value, list) else [value]
        options[section][name] = list(map(plugins.name_without_location, names))
    for section, name in PATHS:
        options[section][name] = ""
    return options | {"engine": {"engine": design.engines.get(arm, "native")}}


def find_different_option(ours: Design, theirs: Design, arm: str) -> str:
    """An option with which an arm's steps differ between two designs, or "" if there is none."""
    at_one_rate = TrainedArm(arm, ours.rates[0], lr=ours.rates[0])
    our_options, their_options = (
        comparable_options(design, at_one_rate) for design in (ours, theirs)
    )
    for section, options in our_options.items():
        if section in NOT_OF_A_STEP:
            continue
        for name, value in options.items():
            if their_options[section][name] != value:
                return name if section == name else f"{section}.{name}"
    return ""
