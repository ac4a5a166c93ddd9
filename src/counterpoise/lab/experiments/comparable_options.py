"""The options of an arm's runs in a form in which two experiments can be compared.

The seed is left out, and so are paths, since they differ between folders and machines: the model
and the problems have digests of their own, and functions count by the content of their files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from counterpoise import plugins
from counterpoise.config import RunConfig
from counterpoise.config.load import find_plugin_options, load_config
from counterpoise.lab.experiments.design import Design, RunKey
from counterpoise.store.resume import forbidden_differences

PATHS = (("model", "name"), ("task", "path"), ("task", "heldout_path"))
# What a resumed run may not change although no step depends on it: where the run computes, and
# what is evaluated, watched and stored of it.
WITHOUT_EFFECT_ON_STEPS = ("model.device", "loop.threads", "monitor.watch", "monitor.probe_file")
SECTIONS_WITHOUT_EFFECT_ON_STEPS = ("evaluate", "warmup", "store", "track")
# Where probes steer the run, these say which answers they are.
PROBE_SOURCES = ("monitor.probe_file", "evaluate.prompts")


class TrainedArm(NamedTuple):
    """What the runs of an experiment have in common, except for their seeds.

    Example:
        TrainedArm("QB", 1e-6, lr=3e-6)     # tables call the rate 1e-6, and the pilot chose 3e-6
    """

    arm: str
    rate: float
    lr: float | None  # the rate that a pilot chose; None where the file fixes it


class ComparableOptions(NamedTuple):
    """The options of an arm's runs without their places; a function has the digest of its file."""

    config: RunConfig
    engine: str


def comparable_options(design: Design, trained_arm: TrainedArm) -> ComparableOptions:
    """Equal for two arms whose runs are the same, wherever the files of both lie."""
    arm, rate, lr = trained_arm
    design = replace(design, arm_rates={} if lr is None else {arm: lr})
    config = load_config(design.base, list(design.overrides(RunKey(arm, rate, seed=0))))
    changes: dict[str, dict[str, Any]] = {}
    for option in find_plugin_options(config):
        section, _, name = option.partition(".")
        value = getattr(getattr(config, section), name)
        names = value if isinstance(value, list) else [value]
        changes.setdefault(section, {})[name] = list(map(plugins.name_without_location, names))
    for section, name in PATHS:
        changes.setdefault(section, {})[name] = ""
    sections = {
        section: replace(getattr(config, section), **section_changes)
        for section, section_changes in changes.items()
    }
    return ComparableOptions(replace(config, **sections), design.engines.get(arm, "native"))


def find_different_option(ours: Design, theirs: Design, arm: str) -> str:
    """An option with which an arm's steps differ between two designs, or "" if there is none."""
    at_one_rate = TrainedArm(arm, ours.rates[0], lr=ours.rates[0])
    our_options, their_options = (
        comparable_options(design, at_one_rate) for design in (ours, theirs)
    )
    if our_options.engine != their_options.engine:
        return "engine"
    for option, _, _ in forbidden_differences(our_options.config, their_options.config):
        if decides_steps(option, our_options.config):
            return option
    return ""


def decides_steps(option: str, config: RunConfig) -> bool:
    """Whether a step of the run depends on an option that a resumed run may not change."""
    if config.steers_by_probes and option in PROBE_SOURCES:
        return True
    section = option.partition(".")[0]
    is_without_effect = section in SECTIONS_WITHOUT_EFFECT_ON_STEPS
    return not (is_without_effect or option in WITHOUT_EFFECT_ON_STEPS)
