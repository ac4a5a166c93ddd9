"""Report failed runs: how many, why, and how the tables change without them.

A run has failed if its process exited with an error before the last iteration; a run that was
stopped has not failed. It has no final success, so it is in no mean and no comparison, and counts
neither as collapsed nor as not collapsed. A failure is stored with the last line of its log, in
the folder and in its pieces, until the run has been finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from counterpoise.errors import format_count
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.results import ArmResult

Failures = Mapping[RunKey, str]  # run -> the last line of its log
MAX_REASON_CHARACTERS = 200  # longer reasons are cut

FAILURE_BIAS_NOTE = (
    "A failed run is not in any number here, and its seed is missing from its arm's comparison "
    "(from all comparisons, if the baseline failed). If the cause had nothing to do with training "
    "(a full disk, a machine turned off), this costs seeds but does not bias anything. If training "
    "caused it (a loss that is not finite, responses so long that memory ran out), only the seeds "
    "that went well remain, the arm looks better than it is, and no verdict here accounts for it. "
    "The same command tries failed runs again."
)
PILOT_BIAS_NOTE = (
    "A rate is judged by its finished runs. If training itself makes runs fail at a rate, that "
    "rate is not stable, whatever the rule says about the other runs."
)


def describe_failures(
    failures: Failures, results: Sequence[ArmResult], experiment: Experiment
) -> list[str]:
    """One line for every arm and rate with a failed run."""
    finished = {(result.arm, result.rate): result for result in results}
    summary_lines = []
    for rate in experiment.design.rates:
        for arm in experiment.design.arms:
            reasons = {
                run_key.seed: reason
                for run_key, reason in failures.items()
                if (run_key.arm, run_key.rate) == (arm, rate)
            }
            if reasons:
                result = finished.get((arm, rate))
                summary = f"{_failure_summary(reasons, arm, rate, result.seeds if result else 0)}. "
                summary_lines.append(summary + _effect_on_tables(reasons, result, arm, experiment))
    return summary_lines


def describe_pilot_failures(failures: Failures, runs: Runs) -> list[str]:
    """One line for every learning rate and arm with a failed run: a pilot has no comparisons."""
    reasons: dict[tuple[float, str], dict[int, str]] = {}
    for run_key, reason in failures.items():
        reasons.setdefault((run_key.rate, run_key.arm), {})[run_key.seed] = reason
    finished = Counter((run_key.rate, run_key.arm) for run_key in runs)
    return [
        f"{_failure_summary(seed_reasons, arm, rate, finished[rate, arm])}."
        for (rate, arm), seed_reasons in sorted(reasons.items())
    ]


def _failure_summary(reasons: Mapping[int, str], arm: str, rate: float, finished: int) -> str:
    """Example: "RB at lr 0.0004: 2 of 8 runs failed, seeds 3, 5 (out of memory)" """
    # Seeds with the same reason are listed together. A "|" would break a Markdown table.
    seeds_by_cause: dict[str, list[int]] = {}
    for seed, reason in sorted(reasons.items()):
        cause = reason[:MAX_REASON_CHARACTERS].replace("|", "/").rstrip(".")
        seeds_by_cause.setdefault(cause, []).append(seed)
    causes = "; ".join(
        f"{'seed' if len(failed_seeds) == 1 else 'seeds'} {', '.join(map(str, failed_seeds))} "
        f"({cause})"
        for cause, failed_seeds in seeds_by_cause.items()
    )
    attempted = format_count(len(reasons) + finished, "run")
    return f"{arm} at lr {rate:g}: {len(reasons)} of {attempted} failed, {causes}"


def _effect_on_tables(
    reasons: Mapping[int, str], result: ArmResult | None, arm: str, experiment: Experiment
) -> str:
    """How the means and comparisons of an arm change without its failed runs."""
    pronoun, seeds_phrase = ("it", "this seed") if len(reasons) == 1 else ("them", "these seeds")
    if arm == experiment.baseline:
        sentence = f"No arm is compared with it at {seeds_phrase}"
    else:
        comparisons = list(result.vs_baseline.values()) if result else []
        compared_seeds = comparisons[0].rollouts.n if comparisons else 0
        seeds_used = (
            f"over {format_count(compared_seeds, 'seed')}, without {pronoun}"
            if compared_seeds
            else "at no seed"
        )
        sentence = f"It is compared with {experiment.baseline} {seeds_used}"
    collapsed_runs, finished_seeds = (result.collapsed_runs, result.seeds) if result else (0, 0)
    return (
        f"{sentence}; {collapsed_runs} of {finished_seeds} collapsed, or "
        f"{collapsed_runs + len(reasons)} of {finished_seeds + len(reasons)} if a failed run "
        "counts as collapsed."
    )
