"""What a check of a run folder says: damage, remarks, and what can still be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from counterpoise.errors import first_line, format_ranges
from counterpoise.store.folder import CHECKPOINTS


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of one file.

    Example:
        Damage("tokens/step_00003.parquet", "is not what the run wrote", 3)
    """

    file: str
    problem: str
    # The first one, where several are missing; None: the whole file, or an unknown place in it.
    iteration: int | None = None


@dataclass(slots=True)
class CheckReport:
    """The result of `check_run`; the functions of this package fill it."""

    run: Path
    findings: list[Damage] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # not damage
    iterations: int = 0  # with a line in metrics.jsonl
    finished: bool = False
    intact_checkpoints: list[int] = field(default_factory=list)
    # What was checked: a file, or a folder with the iterations of its files.
    checked_files: set[str] = field(default_factory=set)
    checked_iterations: dict[str, set[int]] = field(default_factory=dict)
    # Iterations of the lines that could be read, by log: "metrics.jsonl".
    iterations_in_log: dict[str, set[int]] = field(default_factory=dict)
    # What the user accepted as lost, from gaps.jsonl: by log, or by folder with a slash.
    accepted_gaps: dict[str, set[int]] = field(default_factory=dict)
    # What `poise train --resume` needs beside a checkpoint, as the end of a sentence, or "".
    resume_condition: str = ""

    def add(self, file: str, problem: str, iteration: int | None = None) -> None:
        finding = Damage(file, problem, iteration)
        if finding not in self.findings:
            self.findings.append(finding)

    def add_missing(self, file: str, problem: str, iteration: int | None = None) -> None:
        """`add` for something that is not there, unless the user has accepted that."""
        folder, slash, _ = file.rpartition("/")
        if iteration not in self.accepted_gaps.get(folder + slash or file, ()):
            self.add(file, problem, iteration)

    @property
    def is_whole(self) -> bool:
        return not self.findings

    def trusted(self) -> dict[str, str]:
        """File or folder -> which of it agrees with its checksums and with the other files."""
        damaged_files = {finding.file for finding in self.findings}
        trusted: dict[str, str] = {}
        for file in sorted(self.checked_files - damaged_files):
            trusted[file] = "all"
        for log in sorted(self.checked_files & damaged_files):
            finding_iterations = [
                finding.iteration for finding in self.findings if finding.file == log
            ]
            if log in self.iterations_in_log and None not in finding_iterations:
                good = sorted(self.iterations_in_log[log] - set(finding_iterations))
                if good:
                    trusted[log] = f"iterations {format_ranges(good)}"
        for folder, numbers in sorted(self.checked_iterations.items()):
            bad_numbers = {
                finding.iteration
                for finding in self.findings
                if finding.file.startswith(f"{folder}/")
            }
            good = sorted(numbers - bad_numbers)
            if good:
                trusted[f"{folder}/"] = f"iterations {format_ranges(good)}"
        # A checkpoint with the right digests may still contradict memory.jsonl.
        doubtful_checkpoints = {
            finding.iteration
            for finding in self.findings
            if finding.file.startswith(f"{CHECKPOINTS}/")
        }
        if good := sorted(set(self.intact_checkpoints) - doubtful_checkpoints):
            trusted[f"{CHECKPOINTS}/"] = f"iterations {format_ranges(good)}"
        return trusted

    def to_record(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "run": str(self.run),
            "whole": self.is_whole,
            "finished": self.finished,
            "iterations": self.iterations,
            "damage": [asdict(finding) for finding in self.findings],
            "remarks": self.remarks,
            "trusted": self.trusted(),
        }

    def resume_advice(self) -> str:
        """Whether the run can go on, in a sentence."""
        if self.finished and self.intact_checkpoints:
            return "It has finished; its checkpoint is intact."
        if self.finished:
            return "It has finished."
        if self.intact_checkpoints:
            advice = f"It can be resumed after iteration {self.intact_checkpoints[-1]}"
            return f"{advice}{self.resume_condition and f' {self.resume_condition}'}."
        return "It has no intact checkpoint."


def describe_fault(fault: BaseException) -> str:
    """The end of the sentence "FILE ..." for a file that cannot be read."""
    return f"cannot be read: {first_line(fault)[:200]}"


def name_some(values: Sequence[object], limit: int = 3) -> str:
    """The first few values for a message."""
    shown_values = ", ".join(map(str, values[:limit]))
    return f"{shown_values} and {len(values) - limit} more" if len(values) > limit else shown_values
