"""The rule that is executed, in words made from the options that decide: margin, level, hypotheses.

What an author writes as `rule` is shown beside it and decides nothing. compare.py and pilot.py do
what is said here.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.errors import counted
from counterpoise.lab.experiments.compare import FEWEST_SEEDS, Direction
from counterpoise.lab.experiments.dose import dose_sentence
from counterpoise.lab.experiments.experiment_file import Experiment, Hypothesis

DIRECTION_WORDS = {"better": (">", "above 0", "below +"), "worse": ("<", "below 0", "above -")}


def describe_rule(experiment: Experiment) -> str:
    if experiment.options.pilot:
        return _of_a_pilot(experiment)
    ways: tuple[Direction, Direction] = ("better", "worse")
    decided = [_decided(experiment, way) for way in ways]
    setting = next(iter(experiment.heldout_columns.values()))
    level = f"{100 * experiment.options.level:g} % intervals"
    if experiment.family > 1:
        level += f" that hold for {counted(experiment.family, 'comparison')} together"
    said = [
        f"An arm minus {experiment.baseline} in held-out success at {setting}, paired by seed and "
        "read at equal rollouts and at equal updates (the fewer that either run of a pair spent), "
        f"with {level}.",
        *decided,
        f"Otherwise, with fewer than {FEWEST_SEEDS} seeds, or where every seed has the same "
        "difference: inconclusive.",
        _verdict(experiment.hypotheses),
        dose_sentence(experiment),
    ]
    return " ".join(line for line in said if line)


def _decided(experiment: Experiment, way: Direction) -> str:
    mine = [h for h in experiment.hypotheses if h.direction == way]
    if not mine:
        return ""
    _, shown, excluded = DIRECTION_WORDS[way]
    some, every = (
        ("at some rate ", "at every rate ") if len(experiment.design.rates) > 1 else ("",) * 2
    )
    named = ", ".join(f"'{describe_hypothesis(h, experiment)}'" for h in mine)
    return (
        f"{named}: replicated when {some}both intervals lie {shown}, not replicated when {every}"
        f"both lie {excluded}{100 * experiment.options.margin:g} points."
    )


def describe_hypothesis(one: Hypothesis, experiment: Experiment) -> str:
    """As the file writes it: "QB > shuffled"."""
    return f"{one.arm} {DIRECTION_WORDS[one.direction][0]} {experiment.baseline}"


def _verdict(hypotheses: Sequence[Hypothesis]) -> str:
    if not hypotheses:
        return "No hypothesis is stated, so nothing is decided."
    return "The first hypothesis is the verdict." if len(hypotheses) > 1 else ""


def _of_a_pilot(experiment: Experiment) -> str:
    options = experiment.options
    return (
        f"A run learns if its best held-out success is at least {100 * options.learn:g} points "
        f"above its first, and falls if it ends more than {100 * options.fall:g} points below its "
        "best. Stable is the largest rate at which all runs learn and none falls, nor falls at a "
        "smaller one; edge the smallest larger one at which some run falls, though all learn."
    )
