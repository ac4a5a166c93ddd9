"""Check a run folder as a whole. Nothing is written, so a run may go on training meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, format_ranges
from counterpoise.files import check_unlocked
from counterpoise.store.check.agreement import IterationChecker
from counterpoise.store.check.checkpoints import check_checkpoints
from counterpoise.store.check.findings import CheckReport
from counterpoise.store.check.log_lines import (
    Coverage,
    LogLine,
    check_checksum_lines,
    check_lines,
    read_lines,
    records_by_iteration,
)
from counterpoise.store.check.prompt_memory import check_memory_checkpoints
from counterpoise.store.check.stored_files import (
    check_config,
    check_files,
    check_model_folder,
    check_vocabulary_file,
    note_other_files,
    read_json,
)
from counterpoise.store.checksums import CHECKSUMS, CHECKSUMS_FILE, group_by_file
from counterpoise.store.finished import FINISHED_FILE
from counterpoise.store.folder import REPLAY, RunFolder
from counterpoise.store.missing_logs import describe_missing, find_missing_logs, merge_gaps
from counterpoise.store.replays import ReplayDescription
from counterpoise.store.schema import LOGS


def check_run(run: Path) -> CheckReport:
    """Everything that is wrong with the folder `run`; raises PoiseError if it holds no run."""
    RunFolder.open(run)
    report = CheckReport(run)
    try:
        check_unlocked(run)
    except PoiseError:
        report.remarks.append("another process is writing the run: only what is there was checked")
    config = check_config(run, report)
    finished = read_json(run, FINISHED_FILE, report)
    state = check_checkpoints(run, config, report)
    report.finished = _is_finished(finished, config, report)
    lines = {log: read_lines(run, log, report, finished=report.finished) for log in LOGS}
    report.accepted_gaps = merge_gaps(line.record for line in lines["gaps"])
    if report.accepted_gaps:
        accepted = {name: sorted(numbers) for name, numbers in report.accepted_gaps.items()}
        report.remarks.append(f"accepted as lost (gaps.jsonl): {describe_missing(accepted)}")
    coverage = _find_coverage(lines, state, finished or {}, report)
    check_checksum_lines(lines[CHECKSUMS], report)
    check_lines(lines, coverage, report)
    checksums = group_by_file(line.record for line in lines[CHECKSUMS])
    check_files(run, checksums, coverage, report)
    check_model_folder(run, report)
    vocabulary_size = check_vocabulary_file(run, report)
    read_json(run, "contamination.json", report)
    _check_iterations(run, config, vocabulary_size, lines, coverage, report)
    check_memory_checkpoints(run, config, lines["memory"], lines["gaps"], report)
    note_other_files(run, report)
    if config is not None and report.intact_checkpoints and not report.finished:
        report.resume_condition = _find_resume_condition(run, config, report)
    return report


def _find_resume_condition(run: Path, config: RunConfig, report: CheckReport) -> str:
    """The end of the sentence "It can be resumed after iteration 2 ..."; "" without a condition.

    `find_missing_logs` decides, as it does when `--resume` starts.
    """
    has_heldout = config.task.heldout or config.task.heldout_path or config.task.heldout_split
    try:
        missing_logs = find_missing_logs(
            RunFolder.open(run),
            config,
            report.intact_checkpoints[-1],
            expects_evaluations=bool(config.evaluate.prompts and has_heldout),
        )
    except PoiseError as fault:  # a log cannot be read
        return f"once this is mended: {fault}"
    if not missing_logs:
        return ""
    return f"with --accept-missing-logs only: {describe_missing(missing_logs)}"


def _is_finished(
    finished: dict[str, Any] | None, config: RunConfig | None, report: CheckReport
) -> bool:
    if finished is None:
        return False
    iterations = finished.get("iterations")
    if not isinstance(iterations, int):
        report.add(FINISHED_FILE, "does not say how many iterations there were")
        return False
    return config is None or iterations == config.loop.iterations


def _find_coverage(
    lines: dict[str, list[LogLine]],
    state: dict[str, Any],
    finished: dict[str, Any],
    report: CheckReport,
) -> Coverage:
    """From which iteration on the folder has checksums, and up to which it must be complete."""
    # Checkpoints and finished.json say it as well, so that a lost checksums.jsonl is noticed.
    first_iteration = state.get("checksums_from", finished.get("checksums_from"))
    if first_iteration is not None and not lines[CHECKSUMS]:
        report.add(CHECKSUMS_FILE, "is missing or empty")
        first_iteration = None
    if first_iteration is None and lines[CHECKSUMS]:
        covered_iterations = [line.record["iteration"] for line in lines[CHECKSUMS]]
        # Without a checkpoint to say so: checksums exist from the start of the run if one is of
        # iteration 0, else from the earliest iteration that has one.
        first_iteration = 1 if 0 in covered_iterations else min(covered_iterations)
    if first_iteration is None and not report.findings:
        report.remarks.append(
            "there are no checksums: an earlier version wrote the run, and changed numbers "
            "are noticed only where files contradict each other"
        )
    settled = max(report.intact_checkpoints, default=0)
    return Coverage(first_iteration, settled, report.finished)


def _check_iterations(
    run: Path,
    config: RunConfig | None,
    vocabulary_size: int | None,
    lines: dict[str, list[LogLine]],
    coverage: Coverage,
    report: CheckReport,
) -> None:
    """The iterations that must be there, each with its plan, drops and files."""
    metrics = records_by_iteration(lines["metrics"])
    plans = records_by_iteration(lines["plans"])
    drops = records_by_iteration(lines["drops"])
    memory = records_by_iteration(lines["memory"])
    report.iterations = len(metrics)
    accepted_gaps = report.accepted_gaps.get("metrics.jsonl", set())
    probe_lines = records_by_iteration(lines["probes"])
    checker = IterationChecker(run, config, vocabulary_size, report, probe_lines)
    for iteration in sorted(number for number in metrics if number >= 1):
        checker.check(
            iteration,
            metrics[iteration],
            plans.get(iteration),
            drops.get(iteration, {}),
            memory.get(iteration),
        )
    replay = read_json(run, REPLAY, report)
    if replay is not None:
        _check_replayed(ReplayDescription.from_record(replay), metrics, report)
    elif not (run / REPLAY).is_file():  # a damaged one has been reported
        expected_last = max(coverage.settled, max(metrics, default=0))
        if report.finished and config is not None:
            expected_last = max(expected_last, config.loop.iterations)
        for first, last in _missing_ranges(metrics.keys() | accepted_gaps, expected_last):
            missing = f"iteration {first}" if first == last else f"iterations {first}-{last}"
            report.add("metrics.jsonl", f"lacks {missing}", first)
    for log, records in (("plans", plans), ("drops", drops), ("memory", memory)):
        for iteration in records.keys() - metrics.keys():
            if iteration <= coverage.settled and iteration not in accepted_gaps:
                report.add(
                    f"{log}.jsonl", f"has iteration {iteration}, metrics.jsonl has not", iteration
                )


def _check_replayed(
    replay: ReplayDescription, present: Collection[int], report: CheckReport
) -> None:
    """A replay has the iterations that it took from its source, which may start and skip anywhere.

    Those begun before release 0.3.0 do not say which: a lost line is noticed by its checksum alone.
    """
    last_iteration = max(present, default=0)
    missing = [
        number
        for number in replay.iterations or ()
        if number not in present and (report.finished or number <= last_iteration)
    ]
    if missing:
        noun = "iteration" if len(missing) == 1 else "iterations"
        report.add("metrics.jsonl", f"lacks {noun} {format_ranges(missing)}", missing[0])


def _missing_ranges(present: Iterable[int], last_iteration: int) -> list[tuple[int, int]]:
    """(first, last) of every gap in iterations 1 to `last_iteration`.

    Example:
        >>> _missing_ranges({1, 4}, 9)
        [(2, 3), (5, 9)]
    """
    inside = {number for number in present if 1 <= number <= last_iteration}
    bounds = sorted({0, *inside, last_iteration + 1})
    return [(before + 1, after - 1) for before, after in pairwise(bounds) if after - before > 1]
