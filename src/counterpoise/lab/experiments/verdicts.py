"""The verdict on every hypothesis of an experiment, with notes and Markdown tables.

Verdicts use finished runs only. Failed runs are reported beside them (failures.py) and change no
verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from counterpoise.lab.experiments.compare import (
    Comparison,
    describe_comparison,
    format_points,
    judge_comparisons,
)
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, Runs
from counterpoise.lab.experiments.decision_rule import describe_hypothesis
from counterpoise.lab.experiments.dose import (
    DoseResponse,
    describe_dose_effect,
    dose_numbers,
    dose_responses,
    verdict_on_slope,
)
from counterpoise.lab.experiments.experiment_file import Experiment, Hypothesis
from counterpoise.lab.experiments.explained import explained_gains, explained_numbers
from counterpoise.lab.experiments.failures import FAILURE_BIAS_NOTE, Failures, describe_failures
from counterpoise.lab.experiments.measures import MEASURES
from counterpoise.lab.experiments.results import (
    ArmResult,
    arm_results,
    compare_with_baseline,
    named_numbers,
)
from counterpoise.lab.experiments.reused_runs import describe_reused_runs
from counterpoise.lab.experiments.tuned import TunedComparison, compare_tuned, tuned_numbers
from counterpoise.statistics.finding import Finding, Verdict
from counterpoise.statistics.student import SeedMean, bonferroni_level, detectable_difference

NO_FAILURES: Failures = {}
ZERO_TOLERANCE = 1e-9  # a smaller sum is shown as 0: its terms cancelled
INTERVALS_NOTE = (
    "Intervals of success are 95 % by Student's t over the seeds of an arm, cut to 0 to 100 %; "
    "those of differences hold together and are not cut."
)
TUNED_TABLES_NOTE = (
    "The tables compare arms at one learning rate, which decides nothing here: the verdicts above "
    "have every arm at its own best rate."
)


@dataclass(frozen=True, slots=True)
class JudgedHypothesis:
    """A hypothesis with its verdict and the comparisons that decided it, in words."""

    hypothesis: Hypothesis
    verdict: Verdict
    because: str


def judge_experiment(
    runs: Runs, experiment: Experiment, failures: Failures = NO_FAILURES
) -> Finding:
    """The verdict on the first hypothesis at the first setting, or on the slope.

    All other verdicts are notes.
    """
    results = arm_results(runs, experiment)
    judged = _judge_hypotheses(runs, experiment)
    # What decides is told first, so the notes leave it out.
    slope_decides = experiment.options.dose_decides
    notes = [
        f"{judged_hypothesis.hypothesis} than {experiment.baseline}: {judged_hypothesis.verdict}. "
        + _capitalized(judged_hypothesis.because)
        for judged_hypothesis in judged[0 if slope_decides else 1 :]
    ]
    for column, setting in list(experiment.heldout_columns.items())[1:]:
        notes += [
            f"{judged_hypothesis.hypothesis} at {setting}: {judged_hypothesis.verdict}. "
            + _capitalized(judged_hypothesis.because)
            for judged_hypothesis in _judge_hypotheses(runs, experiment, column)[:1]
        ]
    tuned_comparisons = compare_tuned(runs, experiment)
    notes += _tuned_without_hypothesis(tuned_comparisons, experiment)
    responses = dose_responses(runs, experiment)
    if not slope_decides:
        notes += [_dose_note(response, experiment) for response in responses]
    gains = explained_gains(runs, experiment)
    notes += [f"{_capitalized(str(gain))}." for gain in gains]
    notes += [_collapse_note(results, rate) for rate in experiment.design.rates]
    notes += [_cost_note(results), _progress_note(runs, experiment, failures)]
    notes += describe_reused_runs(runs)
    if failure_lines := describe_failures(failures, results, experiment):
        notes += [*failure_lines, FAILURE_BIAS_NOTE]
    deciding_verdict, because = _deciding_verdict(experiment, judged, responses)
    numbers = (
        *named_numbers(results, experiment),
        *tuned_numbers(tuned_comparisons),
        *dose_numbers(responses, experiment),
        *explained_numbers(gains),
    )
    return Finding(deciding_verdict, because, numbers, tuple(note for note in notes if note))


def _deciding_verdict(
    experiment: Experiment, judged: list[JudgedHypothesis], responses: list[DoseResponse]
) -> tuple[Verdict, str]:
    """The verdict of the experiment and the numbers behind it: of the slope, if that decides."""
    if experiment.options.dose_decides:
        notes = [_dose_note(response, experiment) for response in responses]
        because = " ".join(notes) if notes else "No seed has all arms of the slope yet."
        return verdict_on_slope(responses, experiment), because
    if not judged:
        return "inconclusive", "No hypothesis was stated."
    deciding = judged[0]
    difference = f"{deciding.hypothesis.arm} minus {experiment.baseline}"
    return deciding.verdict, f"{difference}: {deciding.because}"


def _dose_note(response: DoseResponse, experiment: Experiment) -> str:
    options = experiment.options
    verdict = "" if response.verdict == "untestable here" else f"{response.verdict}, "
    return f"{_capitalized(describe_dose_effect(options))}: {verdict}{response}."


def hypothesis_verdicts(runs: Runs, experiment: Experiment) -> list[dict[str, str]]:
    """The verdicts on all hypotheses, the deciding one first: the slope, if that decides."""
    slope_verdicts = []
    if experiment.options.dose_decides:
        slope_verdict = verdict_on_slope(dose_responses(runs, experiment), experiment)
        slope_verdicts = [
            {"hypothesis": describe_dose_effect(experiment.options), "verdict": slope_verdict}
        ]
    return slope_verdicts + [
        {
            "hypothesis": describe_hypothesis(hypothesis, experiment),
            "verdict": judge_hypothesis(hypothesis, runs, experiment),
        }
        for hypothesis in experiment.hypotheses
    ]


def judge_hypothesis(
    hypothesis: Hypothesis, runs: Runs, experiment: Experiment, column: str = HELDOUT_COLUMN
) -> Verdict:
    """The verdict on one hypothesis; without runs at every rate it cannot be refuted."""
    return _judge_with_reason(hypothesis, runs, experiment, column).verdict


def _judge_hypotheses(
    runs: Runs, experiment: Experiment, column: str = HELDOUT_COLUMN
) -> list[JudgedHypothesis]:
    return [
        _judge_with_reason(hypothesis, runs, experiment, column)
        for hypothesis in experiment.hypotheses
    ]


def _judge_with_reason(
    hypothesis: Hypothesis, runs: Runs, experiment: Experiment, column: str
) -> JudgedHypothesis:
    """The verdict, and in words the comparisons that it was read from."""
    direction, margin = hypothesis.direction, experiment.options.margin
    if experiment.options.tuned:
        arm_comparisons = [
            tuned_comparison
            for tuned_comparison in compare_tuned(runs, experiment, column)
            if tuned_comparison.arm == hypothesis.arm
        ]
        verdict = judge_comparisons(
            [tuned_comparison.comparison for tuned_comparison in arm_comparisons], direction, margin
        )
        because = "; ".join(map(str, arm_comparisons)) or _why_not_tuned(runs, experiment)
        return JudgedHypothesis(hypothesis, verdict, f"{because}.")
    comparisons = compare_with_baseline(runs, experiment, hypothesis.arm, column)
    verdict = judge_comparisons(comparisons, direction, margin)
    # Replication needs one rate, refutation needs all of them: with rates missing, "not
    # replicated" would be premature.
    if len(comparisons) < len(experiment.design.rates) and verdict != "replicated":
        verdict = "inconclusive"
    return JudgedHypothesis(hypothesis, verdict, _describe_comparisons(comparisons))


def _why_not_tuned(runs: Runs, experiment: Experiment) -> str:
    if any(run_key not in runs for run_key in experiment.design.run_keys()):
        return "rates are chosen when all runs are finished"
    return "in one half of the seeds, no seed has all its runs from the same weights"


def _tuned_without_hypothesis(
    comparisons: list[TunedComparison], experiment: Experiment
) -> list[str]:
    """Sentences on the arms that no hypothesis names."""
    named_arms = {hypothesis.arm for hypothesis in experiment.hypotheses}
    return [
        f"{comparison.arm} minus {experiment.baseline}: {comparison}."
        for comparison in comparisons
        if comparison.arm not in named_arms
    ]


def _describe_comparisons(comparisons: list[Comparison]) -> str:
    if not comparisons:
        return "No seed has both arms yet."
    return "; ".join(describe_comparison(comparison) for comparison in comparisons) + "."


def _capitalized(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _collapse_note(results: list[ArmResult], rate: float) -> str:
    rate_results = [result for result in results if result.rate == rate]
    counts = ", ".join(
        f"{result.arm} {result.collapsed_runs} of {result.seeds}"
        + ("" if math.isnan(result.collapse_p_value) else f" (p = {result.collapse_p_value:.2g})")
        for result in rate_results
    )
    test_note = "in brackets: sign test against the baseline, seed by seed, not adjusted"
    return f"Collapsed at lr {rate:g}: {counts}; {test_note}." if rate_results else ""


def _cost_note(results: list[ArmResult]) -> str:
    """How many rollouts an update costs, for the arms that drop rollouts."""
    sentences = [
        f"{result.arm} at lr {result.rate:g} samples {result.measures['per_update'].value:.0f} "
        f"rollouts for an update and drops {result.measures['dropped'].value:.0f} of them"
        for result in results
        if "dropped" in result.measures and result.measures["dropped"].value > 0
    ]
    return "; ".join(sentences) + "." if sentences else ""


def _progress_note(runs: Runs, experiment: Experiment, failures: Failures) -> str:
    planned = len(experiment.design.run_keys())
    failed = f", {len(failures)} failed" if failures else ""
    return "" if len(runs) == planned else f"{len(runs)} of {planned} runs are finished{failed}."


def describe_power(experiment: Experiment) -> str:
    """The smallest difference that the planned seeds can show, known before anything is run."""
    options = experiment.options
    level = bonferroni_level(options.level, experiment.verdict_family)
    if len(experiment.design.arms) == 1:
        return "one arm: there is nothing to compare"
    if options.seeds < 2:
        return "one seed cannot show a difference: raise experiment.seeds"
    family_phrase = _family_phrase(experiment.verdict_family)
    spreads = (options.spread / 2, options.spread, 2 * options.spread)
    detectable = [detectable_difference(options.seeds, spread, level) for spread in spreads]
    # Success is a share: no difference is larger than 100 points.
    if min(detectable) > 1:
        return (
            f"{options.seeds} seeds are too few to show any difference: it would have to be above "
            f"100 points ({family_phrase}); raise experiment.seeds"
        )
    differences = ", ".join(
        f"{100 * difference:.1f} points if differences vary by {100 * spread:.1f}"
        for difference, spread in zip(detectable, spreads, strict=True)
    )
    return (
        f"{options.seeds} seeds show, 4 times in 5, a difference of {differences} (std over seeds; "
        f"{family_phrase})"
    )


def _family_phrase(family: int) -> str:
    return f"intervals for {family} comparisons together" if family > 1 else "one comparison"


# -- tables for a document ------------------------------------------------------------------------


def results_markdown(runs: Runs, experiment: Experiment, failures: Failures = NO_FAILURES) -> str:
    """results.md: one line per verdict, two tables per rate, and what is missing from them."""
    results = arm_results(runs, experiment)
    markdown_lines = [
        f"- {judged.hypothesis} than {experiment.baseline}: **{judged.verdict}**. "
        + _capitalized(judged.because)
        for judged in _judge_hypotheses(runs, experiment)
    ]
    tuned_comparisons = compare_tuned(runs, experiment)
    markdown_lines += [
        f"- {sentence}" for sentence in _tuned_without_hypothesis(tuned_comparisons, experiment)
    ]
    markdown_lines += [
        f"- {_dose_note(response, experiment)}" for response in dose_responses(runs, experiment)
    ]
    markdown_lines += [f"- {gain}." for gain in explained_gains(runs, experiment)]
    for rate in experiment.design.rates:
        rate_results = [result for result in results if result.rate == rate]
        if rate_results:
            markdown_lines += [
                "",
                f"Learning rate {rate:g}:",
                "",
                *_outcome_table(rate_results, experiment),
            ]
            markdown_lines += ["", *_measure_table(rate_results)]
    if results:
        markdown_lines += ["", INTERVALS_NOTE]
        markdown_lines += [TUNED_TABLES_NOTE] if experiment.options.tuned else []
    if failure_lines := describe_failures(failures, results, experiment):
        markdown_lines += [
            "",
            "Failed:",
            "",
            *(f"- {failure_line}" for failure_line in failure_lines),
            "",
            FAILURE_BIAS_NOTE,
        ]
    markdown_lines += [
        "",
        _progress_note(runs, experiment, failures),
        describe_power(experiment) + ".",
    ]
    return "\n".join(markdown_lines) + "\n"


def _outcome_table(results: list[ArmResult], experiment: Experiment) -> list[str]:
    columns = experiment.heldout_columns
    header = ["arm", "seeds"]
    for setting in columns.values():
        header += [f"success at {setting}", "equal rollouts", "equal updates", "detectable"]
    header += ["p (Holm)", "collapsed", "p (signs)"]
    table_rows = []
    for result in results:
        table_row = [result.arm, str(result.seeds)]
        for column in columns:
            table_row.append(_format_percent(result.success.get(column)))
            comparison = result.vs_baseline.get(column)
            table_row += _difference_cells(comparison)
            detectable = comparison.rollouts.detectable if comparison else math.nan
            table_row.append("" if math.isnan(detectable) else f"{100 * detectable:.1f}")
        table_row += [
            _format_p_value(result.p_value),
            f"{result.collapsed_runs} of {result.seeds}",
            _format_p_value(result.collapse_p_value),
        ]
        table_rows.append(table_row)
    return _markdown_table(header, table_rows)


def _difference_cells(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return ["", ""]
    if comparison.identical_runs:
        return ["same runs"] * 2
    return [format_points(comparison.rollouts), format_points(comparison.updates)]


def _measure_table(results: list[ArmResult]) -> list[str]:
    table_rows = [
        [
            result.arm,
            *(
                _format_measure(result.measures.get(measure_name), percent=measure.percent)
                for measure_name, measure in MEASURES.items()
            ),
        ]
        for result in results
    ]
    return _markdown_table(["arm", *(measure.label for measure in MEASURES.values())], table_rows)


def _format_p_value(p_value: float) -> str:
    return "" if math.isnan(p_value) else f"{p_value:.3f}"


def _markdown_table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]


def _format_percent(mean: SeedMean | None) -> str:
    if mean is None:
        return ""
    interval = f" [{100 * mean.low:.1f}, {100 * mean.high:.1f}]" if mean.n > 1 else ""
    return f"{100 * mean.value:.1f} %{interval}"


def _format_measure(mean: SeedMean | None, *, percent: bool) -> str:
    if mean is None:
        return ""
    if percent:
        return f"{100 * mean.value:.1f} %"
    if abs(mean.value) < ZERO_TOLERANCE:
        return "0"
    return f"{mean.value:.3g}" if abs(mean.value) < 1000 else f"{mean.value:,.0f}"
