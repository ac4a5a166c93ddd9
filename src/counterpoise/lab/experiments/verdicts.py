"""What an experiment found: a verdict on every hypothesis, and the tables behind it.

Verdicts are about the runs that finished; what failed is said beside them (failures.py) and changes
none.
"""

from __future__ import annotations

import math

from counterpoise.lab.experiments.compare import (
    Comparison,
    describe_comparison,
    format_points,
    judge_comparisons,
)
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.decision_rule import describe_hypothesis
from counterpoise.lab.experiments.dose import DoseResponse, dose_numbers, dose_responses
from counterpoise.lab.experiments.experiment_file import Experiment, Hypothesis
from counterpoise.lab.experiments.failures import FAILURE_BIAS_NOTE, Failures, describe_failures
from counterpoise.lab.experiments.measures import MEASURES
from counterpoise.lab.experiments.results import (
    ArmResult,
    arm_results,
    compare_with_baseline,
    named_numbers,
)
from counterpoise.lab.experiments.reused_runs import describe_reused_runs
from counterpoise.statistics.finding import Finding, Verdict
from counterpoise.statistics.student import Mean, shown, together

NO_FAILURES: Failures = {}
ZERO_TOLERANCE = 1e-9  # below it a sum that cancels is 0
INTERVALS_NOTE = (
    "Intervals of success are 95 % by Student's t over the seeds of an arm, cut to 0 to 100 %; "
    "those of differences hold together and are not cut."
)


def judge_experiment(
    runs: Runs, experiment: Experiment, failures: Failures = NO_FAILURES
) -> Finding:
    """The verdict is the first hypothesis's at the first setting; the others are in the notes."""
    found = arm_results(runs, experiment)
    verdicts = {h: judge_hypothesis(h, runs, experiment) for h in experiment.hypotheses}
    notes = [
        f"{h} than {experiment.baseline}: {v}. {_sentence(compare_with_baseline(runs, experiment, h.arm))}"
        for h, v in list(verdicts.items())[1:]
    ]
    notes += [
        f"{first} at {setting}: {judge_hypothesis(first, runs, experiment, column)}. "
        + _sentence(compare_with_baseline(runs, experiment, first.arm, column))
        for first in experiment.hypotheses[:1]
        for column, setting in list(experiment.heldout_columns.items())[1:]
    ]
    responses = dose_responses(runs, experiment)
    notes += [_dose_note(response, experiment) for response in responses]
    notes += [_collapses(found, rate) for rate in experiment.design.rates]
    notes += [_costs(found), _missing(runs, experiment, failures)]
    notes += describe_reused_runs(runs)
    if failed := describe_failures(failures, found, experiment):
        notes += [*failed, FAILURE_BIAS_NOTE]
    decided: Verdict = next(iter(verdicts.values()), "inconclusive")
    because = "No hypothesis was stated."
    if experiment.hypotheses:
        first = experiment.hypotheses[0]
        said = _told(compare_with_baseline(runs, experiment, first.arm))
        because = f"{first.arm} minus {experiment.baseline}: {said}"
    named = (*named_numbers(found, experiment), *dose_numbers(responses, experiment))
    return Finding(decided, because, named, tuple(n for n in notes if n))


def _dose_note(response: DoseResponse, experiment: Experiment) -> str:
    options = experiment.options
    return f"Success {options.dose_effect} with {options.dose}: {response.verdict}, {response}."


def hypothesis_verdicts(runs: Runs, experiment: Experiment) -> list[dict[str, str]]:
    """A verdict on every hypothesis, the deciding one first."""
    return [
        {
            "hypothesis": describe_hypothesis(h, experiment),
            "verdict": judge_hypothesis(h, runs, experiment),
        }
        for h in experiment.hypotheses
    ]


def judge_hypothesis(
    hypothesis: Hypothesis, runs: Runs, experiment: Experiment, column: str = "heldout"
) -> Verdict:
    """Asked at every rate: one that has not been run cannot speak against it."""
    found = compare_with_baseline(runs, experiment, hypothesis.arm, column)
    decided = judge_comparisons(found, hypothesis.direction, experiment.options.margin)
    whole = len(found) == len(experiment.design.rates)
    return decided if whole or decided == "replicated" else "inconclusive"


def _told(found: list[Comparison]) -> str:
    return (
        "; ".join(describe_comparison(one) for one in found) + "."
        if found
        else "No seed has both arms yet."
    )


def _sentence(found: list[Comparison]) -> str:
    said = _told(found)
    return said[0].upper() + said[1:]


def _collapses(found: list[ArmResult], rate: float) -> str:
    mine = [one for one in found if one.rate == rate]
    said = ", ".join(
        f"{one.arm} {one.collapsed_runs} of {one.seeds}"
        + ("" if math.isnan(one.collapse_p_value) else f" (p = {one.collapse_p_value:.2g})")
        for one in mine
    )
    test = "in brackets: sign test against the baseline, seed by seed, not adjusted"
    return f"Collapsed at lr {rate:g}: {said}; {test}." if mine else ""


def _costs(found: list[ArmResult]) -> str:
    """What an update costs where rollouts are dropped."""
    said = [
        f"{one.arm} at lr {one.rate:g} samples {one.measures['per_update'].value:.0f} rollouts for "
        f"an update and drops {one.measures['dropped'].value:.0f} of them"
        for one in found
        if "dropped" in one.measures and one.measures["dropped"].value > 0
    ]
    return "; ".join(said) + "." if said else ""


def _missing(runs: Runs, experiment: Experiment, failures: Failures) -> str:
    planned = len(experiment.design.run_keys())
    failed = f", {len(failures)} failed" if failures else ""
    return "" if len(runs) == planned else f"{len(runs)} of {planned} runs are finished{failed}."


def describe_power(experiment: Experiment) -> str:
    """What the planned seeds can show, before anything is run."""
    options, level = experiment.options, together(experiment.options.level, experiment.family)
    if len(experiment.design.arms) == 1:
        return "one arm: nothing is compared"
    if options.seeds < 2:
        return "one seed shows nothing: raise experiment.seeds"
    spreads = (options.spread / 2, options.spread, 2 * options.spread)
    said = ", ".join(
        f"{100 * shown(options.seeds, spread, level):.1f} points if differences vary by "
        f"{100 * spread:.1f}"
        for spread in spreads
    )
    return (
        f"{options.seeds} seeds show, 4 times in 5, a difference of {said} (std over seeds; "
        f"{_together(experiment.family)})"
    )


def _together(family: int) -> str:
    return f"intervals for {family} comparisons together" if family > 1 else "one comparison"


# -- tables for a document ------------------------------------------------------------------------


def results_markdown(runs: Runs, experiment: Experiment, failures: Failures = NO_FAILURES) -> str:
    """results.md: a verdict a line, two tables for every rate, and what is not in them."""
    found = arm_results(runs, experiment)
    lines = [
        f"- {h} than {experiment.baseline}: **{judge_hypothesis(h, runs, experiment)}**. "
        + _sentence(compare_with_baseline(runs, experiment, h.arm))
        for h in experiment.hypotheses
    ]
    lines += [f"- {_dose_note(r, experiment)}" for r in dose_responses(runs, experiment)]
    for rate in experiment.design.rates:
        mine = [one for one in found if one.rate == rate]
        if mine:
            lines += ["", f"Learning rate {rate:g}:", "", *_outcomes(mine, experiment)]
            lines += ["", *_beside(mine)]
    if found:
        lines += ["", INTERVALS_NOTE]
    if failed := describe_failures(failures, found, experiment):
        lines += ["", "Failed:", "", *(f"- {line}" for line in failed), "", FAILURE_BIAS_NOTE]
    lines += ["", _missing(runs, experiment, failures), describe_power(experiment) + "."]
    return "\n".join(lines) + "\n"


def _outcomes(found: list[ArmResult], experiment: Experiment) -> list[str]:
    columns = experiment.heldout_columns
    head = ["arm", "seeds"]
    for setting in columns.values():
        head += [f"success at {setting}", "equal rollouts", "equal updates", "could show"]
    head += ["p (Holm)", "collapsed", "p (signs)"]
    rows = []
    for one in found:
        row = [one.arm, str(one.seeds)]
        for column in columns:
            row.append(_percent(one.success.get(column)))
            against = one.vs_baseline.get(column)
            row += _against(against)
            seen = against.rollouts.seen if against else math.nan
            row.append("" if math.isnan(seen) else f"{100 * seen:.1f}")
        row += [_p(one.p_value), f"{one.collapsed_runs} of {one.seeds}", _p(one.collapse_p_value)]
        rows.append(row)
    return _table(head, rows)


def _against(one: Comparison | None) -> list[str]:
    if one is None:
        return ["", ""]
    return (
        ["same runs"] * 2
        if one.identical_runs
        else [format_points(one.rollouts), format_points(one.updates)]
    )


def _beside(found: list[ArmResult]) -> list[str]:
    rows = [
        [one.arm, *(_measure(one.measures.get(n), percent=m.percent) for n, m in MEASURES.items())]
        for one in found
    ]
    return _table(["arm", *(m.label for m in MEASURES.values())], rows)


def _p(p: float) -> str:
    return "" if math.isnan(p) else f"{p:.3f}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def _percent(mean: Mean | None) -> str:
    if mean is None:
        return ""
    interval = f" [{100 * mean.low:.1f}, {100 * mean.high:.1f}]" if mean.n > 1 else ""
    return f"{100 * mean.value:.1f} %{interval}"


def _measure(mean: Mean | None, *, percent: bool) -> str:
    if mean is None:
        return ""
    if percent:
        return f"{100 * mean.value:.1f} %"
    if abs(mean.value) < ZERO_TOLERANCE:
        return "0"
    return f"{mean.value:.3g}" if abs(mean.value) < 1000 else f"{mean.value:,.0f}"
