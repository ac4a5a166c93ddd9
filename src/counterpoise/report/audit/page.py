"""audit.html: the findings of a run as one offline page, alarms first."""

from __future__ import annotations

from pathlib import Path

from counterpoise.report.audit.records import AuditReport
from counterpoise.report.audit.sections import (
    AuditSection,
    audit_sections,
    first_finding,
    summary_facts,
)
from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import make_visible

ASSETS = ("audit.css",)


def write_audit_page(report: AuditReport, out: Path) -> Path:
    """Write the page and return its path."""
    panels: dict[str, Panel | None] = {"summary": _summary_panel(report)}
    panels |= {section.level: _section_panel(section) for section in audit_sections(report)}
    return write_page(out, assemble_page("Audit", report.run, panels))


def _summary_panel(report: AuditReport) -> Panel:
    return Panel(
        "",
        "",
        render(
            "audit_summary.html",
            source=make_visible(report.source),
            notes=[make_visible(note) for note in report.notes],
            first=first_finding(report),
            facts=summary_facts(report),
        ),
        assets=("summary.css", *ASSETS),
    )


def _section_panel(section: AuditSection) -> Panel:
    if section.is_table:
        body = render(
            "audit_table.html",
            findings=section.findings,
            unsupported=section.level == "unsupported",
        )
    else:
        body = render("audit_findings.html", findings=section.findings)
    return Panel(section.title, section.caption, body, assets=ASSETS)
