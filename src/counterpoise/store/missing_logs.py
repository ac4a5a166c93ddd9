"""Find lines and files of past iterations that are missing from the folder of a resumed run.

    metrics.jsonl       every iteration
    plans.jsonl         iterations with a batch, as metrics.jsonl says
    drops.jsonl         iterations that dropped rollouts, as metrics.jsonl says
    memory.jsonl        every iteration, with a choice of prompts that needs it
    evaluations.jsonl   0 and every `evaluate.every`, a line for each of evaluate.settings, but
                        not the checkpoint's own iteration, which is evaluated after it is saved
    benchmarks.jsonl    the same, a line for each of evaluate.benchmarks and of evaluate.settings
    rollouts/           every iteration, with store.rollouts
    tokens/             iterations that took an optimizer step, with store.tokens
    probes/             iterations whose metrics say how the probes moved; the same for probe_rows/
                        and probe_pushes/

None of them can be rebuilt exactly from the others: rollouts/ holds rounded log-probabilities and
no credit, and the weights of past iterations are gone. The user may let a run continue without
them; gaps.jsonl then records what is missing, and the next resume accepts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import parse_settings
from counterpoise.errors import PoiseError, format_ranges
from counterpoise.store.folder import RunFolder
from counterpoise.store.resume import ResumePermissions

MissingLogs = dict[str, list[int]]  # log or folder -> iterations that it lacks


def settle_missing_logs(
    folder: RunFolder,
    config: RunConfig,
    iteration: int,
    expects_evaluations: bool,
    permissions: ResumePermissions,
    notify: Callable[[str], None],
) -> None:
    """Refuse to resume after `iteration` with incomplete logs, or record the gap if permitted."""
    missing_logs = find_missing_logs(
        folder, config, iteration, expects_evaluations=expects_evaluations
    )
    if not missing_logs:
        return
    if not permissions.missing_logs:
        raise PoiseError(
            f"{folder.path} has lost part of its logs: {describe_missing(missing_logs)}. They "
            "cannot be rebuilt: restore the files from a backup, or continue without them with "
            "--resume --accept-missing-logs, which records the gap in gaps.jsonl"
        )
    folder.append("gaps", {"iteration": iteration, "missing": missing_logs})
    notify(f"continuing although {describe_missing(missing_logs)}: recorded in gaps.jsonl")


def find_missing_logs(
    folder: RunFolder, config: RunConfig, iteration: int, *, expects_evaluations: bool
) -> MissingLogs:
    """What iterations 1 to `iteration` should have left but is neither there nor a known gap."""
    past_iterations = range(1, iteration + 1)
    metrics_by_iteration = {record["iteration"]: record for record in folder.read("metrics")}
    absent_iterations: MissingLogs = {
        "metrics.jsonl": _absent_from(past_iterations, metrics_by_iteration),
        "plans.jsonl": _absent_from(
            _iterations_with_plan(metrics_by_iteration), _iterations_in_log(folder, "plans")
        ),
        "drops.jsonl": _absent_from(
            _iterations_with_drops(metrics_by_iteration, config),
            _iterations_in_log(folder, "drops"),
        ),
    }
    if config.has_prompt_memory:
        absent_iterations["memory.jsonl"] = _absent_from(
            past_iterations, _iterations_in_log(folder, "memory")
        )
    if expects_evaluations:
        absent_iterations["evaluations.jsonl"] = _absent_evaluations(
            folder, config, iteration, "evaluations"
        )
    if benchmarks := config.evaluate.benchmarks:
        absent_iterations["benchmarks.jsonl"] = _absent_evaluations(
            folder, config, iteration, "benchmarks", lines_per_setting=len(benchmarks)
        )
    if config.store.rollouts:
        absent_iterations["rollouts/"] = _absent_from(
            past_iterations, _iterations_with_file(folder, "rollouts")
        )
    if config.store.tokens:
        iterations_with_step = [
            number for number, record in metrics_by_iteration.items() if record.get("steps")
        ]
        absent_iterations["tokens/"] = _absent_from(
            iterations_with_step, _iterations_with_file(folder, "tokens")
        )
    iterations_with_probes = [
        number
        for number, record in metrics_by_iteration.items()
        if record.get("probe_right") is not None or record.get("probe_wrong") is not None
    ]
    for kind in ("probes", "probe_rows", "probe_pushes"):
        absent_iterations[f"{kind}/"] = _absent_from(
            iterations_with_probes, _iterations_with_file(folder, kind)
        )
    recorded_gaps = merge_gaps(folder.read("gaps"))
    unrecorded_gaps = {
        log_name: sorted(
            number
            for number in numbers
            if number <= iteration and number not in recorded_gaps.get(log_name, ())
        )
        for log_name, numbers in absent_iterations.items()
    }
    return {log_name: numbers for log_name, numbers in unrecorded_gaps.items() if numbers}


def describe_missing(missing: MissingLogs) -> str:
    """What is missing, for a message.

    Example:
        >>> describe_missing({"metrics.jsonl": [1, 2, 3], "plans.jsonl": [7]})
        'metrics.jsonl lacks iterations 1-3, plans.jsonl lacks iteration 7'
    """
    return ", ".join(
        f"{log_name} lacks iteration{'s' if len(numbers) > 1 else ''} {format_ranges(numbers)}"
        for log_name, numbers in missing.items()
    )


def _absent_evaluations(
    folder: RunFolder, config: RunConfig, iteration: int, log: str, *, lines_per_setting: int = 1
) -> list[int]:
    """Iterations before `iteration` that lack the evaluation of at least one setting."""
    line_counts = Counter(record["iteration"] for record in folder.read(log))
    settings = parse_settings(config.evaluate.settings, config.sample)
    lines_per_evaluation = len(settings) * lines_per_setting
    interval = config.evaluate.every
    # Not `iteration` itself: it is evaluated after its checkpoint is saved.
    due_iterations = [
        number
        for number in range(iteration)
        if number == 0 or (interval and number % interval == 0)
    ]
    return [number for number in due_iterations if line_counts[number] < lines_per_evaluation]


def _iterations_with_plan(metrics_by_iteration: dict[int, dict[str, Any]]) -> list[int]:
    return [
        iteration
        for iteration, metrics in metrics_by_iteration.items()
        if metrics.get("batch_rows")
    ]


def _iterations_with_drops(
    metrics_by_iteration: dict[int, dict[str, Any]], config: RunConfig
) -> list[int]:
    """Iterations whose metrics prove a drop."""
    iterations = []
    for iteration, metrics in metrics_by_iteration.items():
        previous_metrics = metrics_by_iteration.get(iteration - 1) if iteration > 1 else {}
        # These counts are totals since the run began, so a drop shows as growth.
        total_fields = ("dropped_surplus", "dropped_aged")
        total_has_grown = previous_metrics is not None and any(
            metrics.get(field, 0) > previous_metrics.get(field, 0) for field in total_fields
        )
        dropped_no_signal = config.drops_silent_rows and metrics.get("rows_without_signal")
        if total_has_grown or dropped_no_signal or metrics.get("dropped_no_spread"):
            iterations.append(iteration)
    return iterations


def _iterations_in_log(folder: RunFolder, log: str) -> set[int]:
    return {line["iteration"] for line in folder.read(log)}


def _iterations_with_file(folder: RunFolder, kind: str) -> set[int]:
    """Iterations with a file that is not empty; a power cut may leave empty ones."""
    return {iteration for iteration, path in folder.step_files(kind).items() if path.stat().st_size}


def _absent_from(due_iterations: Iterable[int], present_iterations: Iterable[int]) -> list[int]:
    present_set = set(present_iterations)
    return [iteration for iteration in due_iterations if iteration not in present_set]


def merge_gaps(records: Iterable[Mapping[str, Any]]) -> dict[str, set[int]]:
    """What the lines of gaps.jsonl accept as lost: iterations by log or folder."""
    gaps_by_log: dict[str, set[int]] = {}
    for record in records:
        for log_name, numbers in record["missing"].items():
            gaps_by_log.setdefault(log_name, set()).update(numbers)
    return gaps_by_log
