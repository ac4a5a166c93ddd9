"""audit.html: the findings of a run as one offline page, alarms first."""

from __future__ import annotations

from pathlib import Path

from counterpoise.report.audit.records import AuditFinding, AuditReport, Level
from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import make_visible

ASSETS = ("audit.css",)
LEVEL_TITLES: dict[Level, tuple[str, str]] = {
    "alarm": ("Alarms", "Repair these first. What they explain is among the notes."),
    "warning": ("Warnings", "Beyond a threshold, but not beyond doubt."),
    "note": ("Notes", "No fault by themselves, or a consequence of a finding above."),
}


def write_audit_page(report: AuditReport, out: Path) -> Path:
    """Write the page and return its path."""
    panels: dict[str, Panel | None] = {"summary": _summary_panel(report)}
    for level, (title, caption) in LEVEL_TITLES.items():
        findings = _findings_at(report, level)
        panels[level] = (
            Panel(title, caption, render("audit_findings.html", findings=findings), assets=ASSETS)
            if findings
            else None
        )
    panels["clear"] = _table_panel(
        report, "clear", "Checked and clear", "Measured, and within the threshold."
    )
    panels["unsupported"] = _table_panel(
        report, "unsupported", "Not checked", "The run's files do not say."
    )
    return write_page(out, assemble_page("Audit", report.run, panels))


def _findings_at(report: AuditReport, level: Level) -> list[AuditFinding]:
    return [finding for finding in report.findings if finding.level == level]


def _summary_panel(report: AuditReport) -> Panel:
    return Panel(
        "",
        "",
        render(
            "audit_summary.html",
            source=make_visible(report.source),
            notes=[make_visible(note) for note in report.notes],
            first=report.findings[0] if report.count("alarm") + report.count("warning") else None,
            facts=(
                ("alarms", report.count("alarm")),
                ("warnings", report.count("warning")),
                ("notes", report.count("note")),
                ("iterations", report.iterations),
                ("rollouts", report.rollouts),
            ),
        ),
        assets=("summary.css", *ASSETS),
    )


def _table_panel(report: AuditReport, level: Level, title: str, caption: str) -> Panel | None:
    findings = _findings_at(report, level)
    if not findings:
        return None
    body = render("audit_table.html", findings=findings, unsupported=level == "unsupported")
    return Panel(title, caption, body, assets=ASSETS)
