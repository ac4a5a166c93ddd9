"""Describe the decision rule in words, generated from the options that decide.

These are `margin`, `level` and `hypotheses` (compare.py), the options of the slope where
`dose_decides` is set (dose.py), and `fall` and `learn` of a pilot (pilot.py). The text that an
author writes as `rule` is shown beside it and decides nothing.
"""

from __future__ import annotations

from counterpoise.errors import format_count
from counterpoise.lab.experiments.compare import FEWEST_SEEDS, Direction
from counterpoise.lab.experiments.dose import dose_sentence
from counterpoise.lab.experiments.experiment_file import Experiment, Hypothesis
from counterpoise.lab.experiments.explained import explained_sentence
from counterpoise.lab.experiments.pilot_rates import pilot_sentence
from counterpoise.lab.experiments.tuned import tuned_sentence

DIRECTION_WORDS = {"better": (">", "above 0", "below +"), "worse": ("<", "below 0", "above -")}


def describe_rule(experiment: Experiment) -> str:
    """The whole decision rule as one paragraph."""
    if experiment.options.pilot:
        return _describe_pilot_rule(experiment)
    directions: tuple[Direction, Direction] = ("better", "worse")
    criteria = [_criterion(experiment, direction) for direction in directions]
    setting = next(iter(experiment.heldout_columns.values()))
    interval_phrase = f"{100 * experiment.options.level:g} % intervals"
    family = experiment.verdict_family
    if family > 1:
        interval_phrase += f" that hold for {format_count(family, 'comparison')} together"
    sentences = [
        pilot_sentence(experiment),
        f"An arm minus {experiment.baseline} in held-out success at {setting}, paired by seed and "
        "read at equal rollouts and at equal updates (the fewer that either run of a pair spent), "
        f"with {interval_phrase}.",
        tuned_sentence(experiment),
        *criteria,
        f"Otherwise, with fewer than {FEWEST_SEEDS} seeds, or where every seed has the same "
        "difference: inconclusive.",
        _deciding_hypothesis(experiment),
        dose_sentence(experiment),
        explained_sentence(experiment),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _criterion(experiment: Experiment, direction: Direction) -> str:
    hypotheses = [
        hypothesis for hypothesis in experiment.hypotheses if hypothesis.direction == direction
    ]
    if not hypotheses:
        return ""
    _, replicated_side, refuted_side = DIRECTION_WORDS[direction]
    # Tuned arms are compared once, each at its own rate.
    several_rates = len(experiment.design.rates) > 1 and not experiment.options.tuned
    at_some_rate = "at some rate " if several_rates else ""
    at_every_rate = "at every rate " if several_rates else ""
    quoted_hypotheses = ", ".join(
        f"'{describe_hypothesis(hypothesis, experiment)}'" for hypothesis in hypotheses
    )
    return (
        f"{quoted_hypotheses}: replicated when {at_some_rate}both intervals lie {replicated_side}, "
        f"not replicated when {at_every_rate}both lie "
        f"{refuted_side}{100 * experiment.options.margin:g} points."
    )


def describe_hypothesis(hypothesis: Hypothesis, experiment: Experiment) -> str:
    """The hypothesis as the file writes it: "QB > shuffled"."""
    return f"{hypothesis.arm} {DIRECTION_WORDS[hypothesis.direction][0]} {experiment.baseline}"


def _deciding_hypothesis(experiment: Experiment) -> str:
    if experiment.options.dose_decides:
        return ""
    if not experiment.hypotheses:
        return "No hypothesis is stated, so there is no verdict."
    # A slope that is judged beside the only hypothesis could be taken for the verdict.
    is_alone = len(experiment.hypotheses) == 1 and not experiment.options.dose
    return "" if is_alone else "The first hypothesis is the verdict."


def _describe_pilot_rule(experiment: Experiment) -> str:
    options = experiment.options
    return (
        f"A run learns if its best held-out success is at least {100 * options.learn:g} points "
        f"above its first, and falls if it ends more than {100 * options.fall:g} points below its "
        "best. Stable is the largest rate at which all runs learn and no run falls, there or at "
        "any smaller rate; edge is the smallest larger rate at which all runs learn and some run "
        "falls. Where a pilot has several arms, the best rate of each is the one with the highest "
        "mean final success."
    )
