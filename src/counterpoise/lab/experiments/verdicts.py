"""What an experiment found: a verdict on every hypothesis, and the tables behind it.

Verdicts are about the runs that finished; what failed is said beside them (failures.py) and changes
none.
"""

from __future__ import annotations

import math

from counterpoise.lab.experiments.compare import Comparison, points, told, verdict
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.decision_rule import hypothesis
from counterpoise.lab.experiments.dose import DoseResponse, dose_numbers, dose_responses
from counterpoise.lab.experiments.experiment_file import Experiment, Hypothesis
from counterpoise.lab.experiments.failures import BIAS, Failures, failures_told
from counterpoise.lab.experiments.measures import MEASURES
from counterpoise.lab.experiments.results import Result, comparisons, numbers, results
from counterpoise.lab.experiments.reused_runs import shared_told
from counterpoise.lab.experiments.tuned import compare_tuned, tuned_numbers
from counterpoise.statistics.finding import Finding, Verdict
from counterpoise.statistics.student import SeedMean, bonferroni_level, detectable_difference

NONE: Failures = {}
ROUNDING = 1e-9  # below it a sum that cancels is 0
INTERVALS = (
    "Intervals of success are 95 % by Student's t over the seeds of an arm, cut to 0 to 100 %; "
    "those of differences hold together and are not cut."
)


def judge(runs: Runs, experiment: Experiment, failures: Failures = NONE) -> Finding:
    """The verdict is the first hypothesis's at the first setting; the others are in the notes."""
    found = results(runs, experiment)
    verdicts = {h: verdict_on(h, runs, experiment) for h in experiment.hypotheses}
    notes = [
        f"{h} than {experiment.baseline}: {v}. {_sentence(comparisons(runs, experiment, h.arm))}"
        for h, v in list(verdicts.items())[1:]
    ]
    notes += [
        f"{first} at {setting}: {verdict_on(first, runs, experiment, column)}. "
        + _sentence(comparisons(runs, experiment, first.arm, column))
        for first in experiment.hypotheses[:1]
        for column, setting in list(experiment.columns.items())[1:]
    ]
    tuned = compare_tuned(runs, experiment)
    notes += [f"{comparison}." for comparison in tuned]
    responses = dose_responses(runs, experiment)
    notes += [_dose_note(response, experiment) for response in responses]
    notes += [_collapses(found, rate) for rate in experiment.design.rates]
    notes += [_costs(found), _missing(runs, experiment, failures)]
    notes += shared_told(runs)
    if failed := failures_told(failures, found, experiment):
        notes += [*failed, BIAS]
    decided: Verdict = next(iter(verdicts.values()), "inconclusive")
    because = "No hypothesis was stated."
    if experiment.hypotheses:
        first = experiment.hypotheses[0]
        said = _told(comparisons(runs, experiment, first.arm))
        because = f"{first.arm} minus {experiment.baseline}: {said}"
    named = (
        *numbers(found, experiment),
        *tuned_numbers(tuned),
        *dose_numbers(responses, experiment),
    )
    return Finding(decided, because, named, tuple(n for n in notes if n))


def _dose_note(response: DoseResponse, experiment: Experiment) -> str:
    options = experiment.options
    return f"Success {options.dose_effect} with {options.dose}: {response.verdict}, {response}."


def verdicts(runs: Runs, experiment: Experiment) -> list[dict[str, str]]:
    """A verdict on every hypothesis, the deciding one first."""
    return [
        {"hypothesis": hypothesis(h, experiment), "verdict": verdict_on(h, runs, experiment)}
        for h in experiment.hypotheses
    ]


def verdict_on(
    hypothesis: Hypothesis, runs: Runs, experiment: Experiment, column: str = "heldout"
) -> Verdict:
    """Asked at every rate: one that has not been run cannot speak against it."""
    if experiment.options.tuned:
        tuned = [t for t in compare_tuned(runs, experiment, column) if t.arm == hypothesis.arm]
        return verdict([t.comparison for t in tuned], hypothesis.way, experiment.options.margin)
    found = comparisons(runs, experiment, hypothesis.arm, column)
    decided = verdict(found, hypothesis.way, experiment.options.margin)
    whole = len(found) == len(experiment.design.rates)
    return decided if whole or decided == "replicated" else "inconclusive"


def _told(found: list[Comparison]) -> str:
    return "; ".join(told(one) for one in found) + "." if found else "No seed has both arms yet."


def _sentence(found: list[Comparison]) -> str:
    said = _told(found)
    return said[0].upper() + said[1:]


def _collapses(found: list[Result], rate: float) -> str:
    mine = [one for one in found if one.rate == rate]
    said = ", ".join(
        f"{one.arm} {one.collapsed} of {one.seeds}"
        + ("" if math.isnan(one.collapse_p) else f" (p = {one.collapse_p:.2g})")
        for one in mine
    )
    test = "in brackets: sign test against the baseline, seed by seed, not adjusted"
    return f"Collapsed at lr {rate:g}: {said}; {test}." if mine else ""


def _costs(found: list[Result]) -> str:
    """What an update costs where rollouts are dropped."""
    said = [
        f"{one.arm} at lr {one.rate:g} samples {one.measures['per_update'].value:.0f} rollouts for "
        f"an update and drops {one.measures['dropped'].value:.0f} of them"
        for one in found
        if "dropped" in one.measures and one.measures["dropped"].value > 0
    ]
    return "; ".join(said) + "." if said else ""


def _missing(runs: Runs, experiment: Experiment, failures: Failures) -> str:
    planned = len(experiment.design.runs())
    failed = f", {len(failures)} failed" if failures else ""
    return "" if len(runs) == planned else f"{len(runs)} of {planned} runs are finished{failed}."


def power(experiment: Experiment) -> str:
    """What the planned seeds can show, before anything is run."""
    options, level = (
        experiment.options,
        bonferroni_level(experiment.options.level, experiment.family),
    )
    if len(experiment.design.arms) == 1:
        return "one arm: nothing is compared"
    if options.seeds < 2:
        return "one seed shows nothing: raise experiment.seeds"
    spreads = (options.spread / 2, options.spread, 2 * options.spread)
    said = ", ".join(
        f"{100 * detectable_difference(options.seeds, spread, level):.1f} points if differences "
        f"vary by {100 * spread:.1f}"
        for spread in spreads
    )
    return (
        f"{options.seeds} seeds show, 4 times in 5, a difference of {said} (std over seeds; "
        f"{_together(experiment.family)})"
    )


def _together(family: int) -> str:
    return f"intervals for {family} comparisons together" if family > 1 else "one comparison"


# -- tables for a document ------------------------------------------------------------------------


def markdown(runs: Runs, experiment: Experiment, failures: Failures = NONE) -> str:
    """results.md: a verdict a line, two tables for every rate, and what is not in them."""
    found = results(runs, experiment)
    lines = [
        f"- {h} than {experiment.baseline}: **{verdict_on(h, runs, experiment)}**. "
        + _sentence(comparisons(runs, experiment, h.arm))
        for h in experiment.hypotheses
    ]
    lines += [f"- {comparison}." for comparison in compare_tuned(runs, experiment)]
    lines += [f"- {_dose_note(r, experiment)}" for r in dose_responses(runs, experiment)]
    for rate in experiment.design.rates:
        mine = [one for one in found if one.rate == rate]
        if mine:
            lines += ["", f"Learning rate {rate:g}:", "", *_outcomes(mine, experiment)]
            lines += ["", *_beside(mine)]
    if found:
        lines += ["", INTERVALS]
    if failed := failures_told(failures, found, experiment):
        lines += ["", "Failed:", "", *(f"- {line}" for line in failed), "", BIAS]
    lines += ["", _missing(runs, experiment, failures), power(experiment) + "."]
    return "\n".join(lines) + "\n"


def _outcomes(found: list[Result], experiment: Experiment) -> list[str]:
    columns = experiment.columns
    head = ["arm", "seeds"]
    for setting in columns.values():
        head += [f"success at {setting}", "equal rollouts", "equal updates", "could show"]
    head += ["p (Holm)", "collapsed", "p (signs)"]
    rows = []
    for one in found:
        row = [one.arm, str(one.seeds)]
        for column in columns:
            row.append(_percent(one.success.get(column)))
            against = one.against.get(column)
            row += _against(against)
            seen = against.rollouts.detectable if against else math.nan
            row.append("" if math.isnan(seen) else f"{100 * seen:.1f}")
        row += [_p(one.p), f"{one.collapsed} of {one.seeds}", _p(one.collapse_p)]
        rows.append(row)
    return _table(head, rows)


def _against(one: Comparison | None) -> list[str]:
    if one is None:
        return ["", ""]
    return ["same runs"] * 2 if one.same else [points(one.rollouts), points(one.updates)]


def _beside(found: list[Result]) -> list[str]:
    rows = [
        [one.arm, *(_measure(one.measures.get(n), percent=m.percent) for n, m in MEASURES.items())]
        for one in found
    ]
    return _table(["arm", *(m.label for m in MEASURES.values())], rows)


def _p(p: float) -> str:
    return "" if math.isnan(p) else f"{p:.3f}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def _percent(mean: SeedMean | None) -> str:
    if mean is None:
        return ""
    interval = f" [{100 * mean.low:.1f}, {100 * mean.high:.1f}]" if mean.n > 1 else ""
    return f"{100 * mean.value:.1f} %{interval}"


def _measure(mean: SeedMean | None, *, percent: bool) -> str:
    if mean is None:
        return ""
    if percent:
        return f"{100 * mean.value:.1f} %"
    if abs(mean.value) < ROUNDING:
        return "0"
    return f"{mean.value:.3g}" if abs(mean.value) < 1000 else f"{mean.value:,.0f}"
