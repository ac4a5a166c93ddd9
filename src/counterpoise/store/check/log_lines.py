"""Check the logs of a run: every line can be read, has its checksum, and none is missing.

An iteration is settled if no resume would repeat it: the newest intact checkpoint holds it, or the
run has finished. What later iterations lack was cut off by a crash, and a resumed run writes it
again: that is no damage.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.store.check.findings import CheckReport, describe_fault
from counterpoise.store.checksums import CHECKSUMS, CHECKSUMS_FILE, Checksum
from counterpoise.store.folder import LOGS_AFTER_CHECKPOINT
from counterpoise.store.logs import Record, parse_log_line
from counterpoise.store.schema import LOGS

ONE_LINE_AT_MOST = ("metrics", "plans", "drops", "memory", "probes")  # for each iteration


@dataclass(frozen=True, slots=True)
class LogLine:
    number: int  # from 1
    checksum: Checksum
    record: Record


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which iterations must have checksums, and which must be complete."""

    first_iteration: int | None  # with checksums; None: the folder has none
    settled: int  # the last iteration that no resume would repeat
    finished: bool

    def needs_checksum(self, iteration: int) -> bool:
        if self.first_iteration is None:
            return False
        # Iteration 0 is the evaluation before training.
        return iteration >= self.first_iteration or self.first_iteration == 1

    def must_exist(self, iteration: int, log: str = "") -> bool:
        """Whether what the iteration lacks is damage, rather than cut off by a crash."""
        # An evaluation comes after the checkpoint of its iteration.
        last_iteration = self.settled - (log in LOGS_AFTER_CHECKPOINT)
        return self.finished or iteration <= last_iteration


def read_lines(run: Path, log: str, report: CheckReport, *, finished: bool) -> list[LogLine]:
    """The lines that can be read; the others become findings."""
    file = run / f"{log}.jsonl"
    if not file.exists():
        return []
    report.checked_files.add(file.name)
    try:
        content = file.read_bytes()
    except OSError as fault:
        report.add(file.name, describe_fault(fault))
        return []
    *complete_lines, last_line = content.split(b"\n")
    if last_line and finished:
        report.add(file.name, "ends in half a line")
    elif last_line:
        report.remarks.append(f"{file.name} ends in half a line, which a resumed run removes")
    lines = []
    for number, line in enumerate(complete_lines, 1):
        try:
            record = parse_log_line(line.decode(), log)
            _check_schema(record)
        except (ValueError, RecursionError) as fault:
            report.add(file.name, f"line {number} {describe_fault(fault)}")
            continue
        lines.append(LogLine(number, Checksum.of_content(line + b"\n"), record))
    report.iterations_in_log[file.name] = {line.record["iteration"] for line in lines}
    return lines


def _check_schema(record: Record) -> None:
    if record.get("schema") != 1:
        raise ValueError("schema is not 1")


def check_lines(
    lines_by_log: dict[str, list[LogLine]], coverage: Coverage, report: CheckReport
) -> None:
    """Compare every line with its checksum and find missing, repeated and misplaced ones."""
    checksums: dict[tuple[str, int], list[Checksum]] = defaultdict(list)
    for line in lines_by_log[CHECKSUMS]:
        record = line.record
        checksums[record["file"], record["iteration"]].append(Checksum.of_record(record))
    for log in LOGS:
        if log == CHECKSUMS:
            continue
        file_name = f"{log}.jsonl"
        _check_order(log, lines_by_log[log], report)
        for line in lines_by_log[log]:
            iteration = line.record["iteration"]
            unmatched = checksums[file_name, iteration]
            if line.checksum in unmatched:
                unmatched.remove(line.checksum)
            elif coverage.needs_checksum(iteration):
                problem = "has no checksum" if not unmatched else "is not what the run wrote"
                report.add(file_name, f"line {line.number} {problem}", iteration)
    _find_missing_lines(checksums, coverage, report)


def _find_missing_lines(
    checksums: dict[tuple[str, int], list[Checksum]], coverage: Coverage, report: CheckReport
) -> None:
    """Checksums that are left over belong to lines that are missing."""
    log_names = {f"{log}.jsonl": log for log in LOGS}
    for (file_name, iteration), unmatched in checksums.items():
        log = log_names.get(file_name)
        if log is None or not unmatched:
            continue
        if coverage.must_exist(iteration, log):
            report.add_missing(file_name, f"lacks a line of iteration {iteration}", iteration)
        else:
            report.remarks.append(
                f"{file_name}: a line of iteration {iteration} was not written to the end, "
                "so a resumed run writes it"
            )


def _check_order(log: str, lines: list[LogLine], report: CheckReport) -> None:
    """Iterations ascend, and the logs of ONE_LINE_AT_MOST have none twice."""
    previous = -1
    for line in lines:
        iteration = line.record["iteration"]
        if iteration < previous or (iteration == previous and log in ONE_LINE_AT_MOST):
            report.add(
                f"{log}.jsonl",
                f"line {line.number} has iteration {iteration} after iteration {previous}",
                iteration,
            )
        previous = max(previous, iteration)


def records_by_iteration(lines: list[LogLine]) -> dict[int, dict[str, Any]]:
    return {line.record["iteration"]: line.record for line in lines}


def check_checksum_lines(lines: list[LogLine], report: CheckReport) -> None:
    """A file of an iteration is written once, so it has one checksum."""
    seen_files: set[str] = set()
    for line in lines:
        file_name = line.record["file"]
        if "/step_" in file_name and file_name in seen_files:
            report.add(CHECKSUMS_FILE, f"line {line.number} repeats {file_name}")
        seen_files.add(file_name)
