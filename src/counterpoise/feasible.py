"""Options that are each right and together are not: found before anything is written."""

from __future__ import annotations

import math

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.evaluate.settings import settings_of


def checked(config: RunConfig) -> RunConfig:
    """The same configuration, or the first reason why it cannot run."""
    settings_of(config.evaluate.settings, config.sample)
    for check in (_levels, _steps, _balance, _scratch):
        if reason := check(config):
            raise PoiseError(reason)
    return config


def _levels(config: RunConfig) -> str:
    bad = [level for level in config.task.levels if level not in (1, 2, 3, 4)]
    return f"task.levels: {bad[0]} is not a level (1 to 4)" if bad else ""


def _steps(config: RunConfig) -> str:
    """A plan needs rows for every step, and `grouped` whole groups."""
    rule, steps, prompts = config.batch.composer, config.batch.steps, config.sample.prompts
    G, tau, target = config.sample.group_size, config.balance.tau, config.target
    rows = target if tau else prompts * G
    fewest_groups = math.ceil(target / G)
    if rule == "whole" and steps != 1:
        return "batch.composer=whole makes one step: set batch.steps=1"
    if rule == "by_sign" and steps == 1:
        return "batch.composer=by_sign keeps the signs apart: raise batch.steps to 2"
    if rows < steps:
        return f"{rows} rows cannot fill {steps} steps: lower batch.steps or raise sample.prompts"
    if rule == "grouped" and prompts < steps:
        return (
            f"{prompts} groups cannot fill {steps} steps without being split: "
            "lower batch.steps or raise sample.prompts"
        )
    if rule == "grouped" and tau and fewest_groups < steps:
        return (
            f"balance.target={target} may be {fewest_groups} groups, which cannot fill {steps} "
            "steps without being split: lower batch.steps or raise balance.target"
        )
    return ""


def _balance(config: RunConfig) -> str:
    """RB must be able to fill a batch at all."""
    tau, target = config.balance.tau, config.target
    if tau and config.credit.name == "positive_only":
        return "credit.name=positive_only has no negative rollouts to balance: set balance.tau=0"
    if config.balance.unit == "rollout" and 2 * math.ceil(tau * target) > target:
        return (
            f"no batch of {target} rollouts has a share of {tau} of each sign: "
            "make balance.target even or lower tau"
        )
    return ""


def _scratch(config: RunConfig) -> str:
    hidden, heads = config.warmup.hidden, config.warmup.heads
    if heads % 2:
        return f"warmup.heads must be even, not {heads}: two share a key/value head"
    if hidden % (2 * heads):
        return (
            f"warmup.hidden={hidden} does not make {heads} heads of even width: "
            f"choose a multiple of {2 * heads}"
        )
    return ""
