"""Run every finding on a run, and put the cause before its consequences.

A finding that is explained by another one becomes a note that says so: a run with a tenfold
learning rate also loses its signal, but that is not what to repair. The cause must be at least as
serious, so a warning never lowers an alarm. Then alarms come first, warnings next, and within a
level the stage of the run decides (the order of FINDINGS).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from counterpoise import __version__
from counterpoise.errors import explain_damage
from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.prompts import benchmark_files_of
from counterpoise.report.audit.records import LEVELS, AuditFinding, AuditReport
from counterpoise.report.audit.rollout_scan import MAX_PROMPTS
from counterpoise.report.audit.run_files import Progress
from counterpoise.variants import FINDINGS

SCHEMA = 1


def audit_run(
    path: Path,
    benchmark_files: Sequence[Path] = (),
    progress: Progress = lambda what, done, total: None,
    may_read: Callable[[Path], bool] = lambda path: True,
) -> AuditReport:
    """All findings of the run in `path`; reads, and never writes.

    `may_read` decides on benchmark files that the run's options name, wherever they are.
    """
    with explain_damage(path):
        run = AuditRun.read(path, benchmark_files, progress)
        if not benchmark_files and run.config is not None:
            named_files = benchmark_files_of(path, run.config.task.benchmarks)
            run.benchmark_files = [file for file in named_files if may_read(file)]
        findings = [replace(FINDINGS.load(name)(run), name=name) for name in FINDINGS]
        notes = []
        if run.unreadable_lines:
            count = run.unreadable_lines
            lines = "1 line of rollouts/ is" if count == 1 else f"{count:,} lines of rollouts/ are"
            notes.append(f"{lines} no rollout: left out")
        if run.rollout_files and (untracked := run.rollout_totals.untracked_rollouts):
            notes.append(
                f"{untracked:,} rollouts of further prompts are left out of findings about prompts "
                f"and answers: they look at {MAX_PROMPTS:,} distinct prompts"
            )
        rollouts = (
            run.rollout_totals.num_rollouts if run.rollout_files else int(run.total("rollouts"))
        )
        return AuditReport(
            run=path.resolve().name,
            source=run.source,
            iterations=run.iterations,
            rollouts=rollouts,
            findings=rank_findings(findings),
            notes=tuple(notes),
        )


def rank_findings(findings: Sequence[AuditFinding]) -> tuple[AuditFinding, ...]:
    """Lower what another finding explains, then sort by level and stage."""
    serious = [finding for finding in findings if finding.level in ("alarm", "warning")]
    causes: dict[str, str] = {}
    for cause in serious:
        # What is itself a consequence explains nothing of its own.
        if cause.name in causes:
            continue
        for consequence in cause.explains:
            is_stronger = any(
                other.name == consequence and LEVELS.index(other.level) < LEVELS.index(cause.level)
                for other in serious
            )
            if not is_stronger:
                causes.setdefault(consequence, cause.name)
    ranked = [
        replace(finding, level="note", consequence_of=causes[finding.name])
        if finding.name in causes and finding.level in ("alarm", "warning")
        else finding
        for finding in findings
    ]
    return tuple(sorted(ranked, key=lambda finding: LEVELS.index(finding.level)))


def report_to_data(report: AuditReport) -> dict[str, Any]:
    """The report as JSON data, for --json and for scripts."""
    data = asdict(report)
    for finding, record in zip(report.findings, data["findings"], strict=True):
        for measurement, entry in zip(finding.measurements, record["measurements"], strict=True):
            entry["text"] = str(measurement)
    return {"schema": SCHEMA, "version": __version__, **data}
