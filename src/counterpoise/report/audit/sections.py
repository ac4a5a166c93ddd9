"""The sections of an audit, in the order of the page: for audit.html and for `poise serve`."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.report.audit.records import AuditFinding, AuditReport, Level

# level -> (title, caption); those of the last two are tables, the others are told at length
SECTION_TITLES: dict[Level, tuple[str, str]] = {
    "alarm": ("Alarms", "Repair these first. What they explain is among the notes."),
    "warning": ("Warnings", "Past the threshold for a warning, but not for an alarm."),
    "note": ("Notes", "No fault by themselves, or a consequence of a finding above."),
    "clear": ("Checked and clear", "Measured, and within the threshold."),
    "unsupported": ("Not checked", "The run's files do not say."),
}


@dataclass(frozen=True, slots=True)
class AuditSection:
    """The findings of one level.

    Example:
        AuditSection("alarm", "Alarms", "Repair these first. ...", (AuditFinding(...),))
    """

    level: Level
    title: str
    caption: str
    findings: tuple[AuditFinding, ...]

    @property
    def is_table(self) -> bool:
        return self.level in ("clear", "unsupported")


def audit_sections(report: AuditReport) -> list[AuditSection]:
    """The sections that have findings, most serious first."""
    sections = [
        AuditSection(
            level, title, caption, tuple(each for each in report.findings if each.level == level)
        )
        for level, (title, caption) in SECTION_TITLES.items()
    ]
    return [section for section in sections if section.findings]


def first_finding(report: AuditReport) -> AuditFinding | None:
    """What to repair first; None where nothing is beyond its threshold."""
    return report.findings[0] if report.count("alarm") + report.count("warning") else None


def summary_facts(report: AuditReport) -> tuple[tuple[str, int], ...]:
    """The counts above the findings."""
    return (
        ("alarms", report.count("alarm")),
        ("warnings", report.count("warning")),
        ("notes", report.count("note")),
        ("iterations", report.iterations),
        ("rollouts", report.rollouts),
    )
