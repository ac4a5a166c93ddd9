"""Numbers, verdict and notes of the credit study."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.lab.experiments.compare import FEWEST_SEEDS, as_number, format_points
from counterpoise.lab.studies.credit.arms import BASELINE
from counterpoise.lab.studies.credit.training import (
    TrainingResult,
    training_results,
    untrained_notes,
)
from counterpoise.lab.studies.credit.value_correlation import (
    ArmCorrelations,
    ComparedTokens,
    correlate_arms,
)
from counterpoise.statistics.bootstrap import Interval, format_interval
from counterpoise.statistics.finding import Finding, Number, Records, Verdict

MARGIN = 0.05  # the smallest gain in rank correlation that would matter
# Field of ArmCorrelations -> what its number is called.
NUMBER_LABELS = {
    "gain": "A w and value, less A alone",
    "credit": "A w and value",
    "right": "w and value, right rollouts",
    "wrong": "-w and value, wrong rollouts",
    "moved": "movement and value",
    "lift": "movement and value, less uniform's",
    "hidden": "movement and value, less A w of the same tokens",
    "residual": "left on shared prefixes",
    "group": "left of the mean pulls of a group",
    "cancellation": "cancellation index",
}


def judge(records: Records) -> Finding:
    tokens = ComparedTokens(records)
    correlations = correlate_arms(records, tokens)
    runs, unfinished = training_results(records), untrained_notes(records)
    gains = {
        result.arm: result.gain
        for result in correlations
        if result.counts_for_verdict and result.gain
    }
    # Intervals hold for all weightings together, so counting them needs no further correction.
    better_arms = [arm for arm, (_, low, _) in gains.items() if low > 0]
    worse_arms = [arm for arm, (_, _, high) in gains.items() if high < 0]
    arms_without_gain = [arm for arm, (_, _, high) in gains.items() if high < MARGIN]
    baseline = next(result for result in correlations if result.arm == BASELINE)
    because = (
        f"A alone follows the value of a token by {format_correlation(baseline.credit)}. Of "
        f"{len(gains)} token weights {len(better_arms)} follow it more closely with A w "
        f"({_names(better_arms)}) and {len(worse_arms)} less ({_names(worse_arms)}); for "
        f"{len(arms_without_gain)} a gain of "
        f"{MARGIN:g} or more is excluded ({_names(arms_without_gain)})"
    )
    if gains:
        best_arm = max(gains, key=lambda arm: gains[arm][0])
        because += f"; most: {best_arm}, {format_correlation(gains[best_arm])} more"
    return Finding(
        verdict_from_gains(list(gains.values())),
        because + ".",
        (*_numbers(correlations), *_training_numbers(runs)),
        (*_notes(correlations, runs, tokens, unfinished), *_refusal_notes(records)),
    )


def verdict_from_gains(gains: Sequence[Interval]) -> Verdict:
    """Replicated if half of the gains are above 0; not replicated if most are below MARGIN."""
    num_better = sum(low > 0 for _, low, _ in gains)
    num_small = sum(high < MARGIN for _, _, high in gains)
    if gains and 2 * num_better >= len(gains):
        return "replicated"
    return "not replicated" if 2 * num_small > len(gains) else "inconclusive"


def format_correlation(interval: Interval | None) -> str:
    return format_interval(interval, "+.2f") if interval else "nothing"


def _names(arms: Sequence[str]) -> str:
    return ", ".join(arms) or "none"


def _numbers(correlations: Sequence[ArmCorrelations]) -> list[Number]:
    numbers = [
        Number(f"{result.arm}: {label}", *interval)
        for field_name, label in NUMBER_LABELS.items()
        for result in correlations
        if (interval := getattr(result, field_name))
    ]
    return numbers + [
        Number(f"{result.arm}: overhead, share of an iteration", result.overhead, unit="share")
        for result in correlations
        if result.arm != BASELINE
    ]


def _training_numbers(runs: Sequence[TrainingResult]) -> list[Number]:
    numbers = []
    for result in runs:
        label_prefix = f"{result.arm}, lr {result.rate:g}"
        numbers.append(as_number(f"{label_prefix}: success after training", result.success))
        for metric_name, mean in (("rollouts", result.by_rollouts), ("seconds", result.by_seconds)):
            if mean:
                numbers.append(
                    as_number(f"{label_prefix}: less {BASELINE}, equal {metric_name}", mean)
                )
        if result.slowdown:
            numbers.append(as_number(f"{label_prefix}: longer iterations", result.slowdown))
        for metric_name in ("cancellation", "residual", "entropy"):
            if (value := getattr(result, metric_name)) is not None:
                numbers.append(Number(f"{label_prefix}: {metric_name} in training", value))
    return numbers


def _notes(
    correlations: Sequence[ArmCorrelations],
    runs: Sequence[TrainingResult],
    tokens: ComparedTokens,
    unfinished: Sequence[str],
) -> list[str]:
    prompts, N = len(set(tokens.prompts)), len(tokens.prompts)
    notes = [
        f"{N} open tokens of {prompts} prompts. Their values are noisy: judging by how well two "
        "halves of the continuations agree, no credit could correlate with them by more than "
        f"{tokens.ceiling:.2f}.",
        "Overhead: the extra time of one iteration of each arm on the same batch, as a share of "
        "an iteration with uniform weights, sampling included.",
    ]
    by_lift = sorted(
        (result for result in correlations if result.lift and not result.all_ones),
        key=lambda result: result.lift[0] if result.lift else 0.0,
        reverse=True,
    )
    if by_lift:
        extreme_arms = by_lift[:1] if len(by_lift) == 1 else [by_lift[0], by_lift[-1]]
        extremes = "; ".join(
            f"{result.arm} {format_correlation(result.lift)}" for result in extreme_arms
        )
        notes.append(
            "Correlation of a token's movement in one iteration with its value, minus that of "
            f"{BASELINE}, highest and lowest: {extremes}."
        )
    if idle_arms := [
        result.arm for result in correlations if result.all_ones and result.arm != BASELINE
    ]:
        notes.append(
            f"Weights of 1 on this batch, so neither judged nor trained: {', '.join(idle_arms)}."
        )
    if not runs and not unfinished:
        notes.append(
            "No arm was trained: --budget full trains them on the embedded model; for another "
            "model, write an experiment (docs/results/experiments.md)."
        )
    compared = [result for result in runs if result.by_rollouts]
    if compared and max(result.success.n for result in compared) < FEWEST_SEEDS:
        notes.append(f"Training of fewer than {FEWEST_SEEDS} seeds says nothing about success.")
    for result in compared:
        if result.by_rollouts and result.by_rollouts.n >= FEWEST_SEEDS:
            notes.append(
                f"{result.arm} minus {BASELINE} at lr {result.rate:g}, {result.by_rollouts.n} "
                f"seeds: {format_points(result.by_rollouts)} at equal rollouts"
                + (
                    f", {format_points(result.by_seconds)} at equal seconds."
                    if result.by_seconds
                    else "."
                )
            )
    return [*notes, *unfinished]


def _refusal_notes(records: Records) -> list[str]:
    return [f"Left out: {record['reason']}." for record in records if record["panel"] == "refused"]
