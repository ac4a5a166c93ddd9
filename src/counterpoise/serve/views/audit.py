"""The audit of a run: ranked findings, as `poise audit --json` prints them, and how current it is.

    {"state": "ready" | "older" | "reading", "progress": ..., "iterations_now": 40, "report": ...}

"older" is an audit of the run as it was some iterations ago; "reading" is the first audit, which is
still under way.
"""

from __future__ import annotations

from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.audit.shelf import AuditShelf
from counterpoise.serve.index.fates import born_in
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.batch import group_address, rollout_address


def audit_view(reader: RunReader, shelf: AuditShelf, patience: float) -> dict[str, Any]:
    answer = shelf.ask(reader, patience)
    result = answer.result
    if result is not None and "problem" in result:
        raise PoiseError(result["problem"])
    report = None if result is None else result["report"]
    progress = None
    if answer.progress is not None:
        what, done, total = answer.progress
        progress = {"what": what, "done": done, "total": total}
    return {
        "state": "reading" if report is None else "ready" if answer.is_current else "older",
        "progress": progress,
        "iterations_now": len(reader.iterations),
        "seconds": None if result is None else result["seconds"],
        "report": None if report is None else _with_places(reader, report),
    }


def audit_page(reader: RunReader, shelf: AuditShelf, patience: float) -> str:
    """The offline page of the audit that the view shows."""
    view = audit_view(reader, shelf, patience)
    if view["report"] is None:
        raise NotFoundError("the audit is not ready yet: the run's rollouts are being read")
    return shelf.page(reader).read_text(encoding="utf-8")


def _with_places(reader: RunReader, report: dict[str, Any]) -> dict[str, Any]:
    """The report with an address for every example that names a rollout or a group."""
    findings = [
        {
            **finding,
            "examples": [
                {**example, "place": _place_of(reader, example)} for example in finding["examples"]
            ],
        }
        for finding in report["findings"]
    ]
    return {**report, "findings": findings}


def _place_of(reader: RunReader, example: dict[str, Any]) -> str | None:
    """The address of an example; None for a prompt, a benchmark item or an iteration."""
    group = str(example["group"])
    iteration = born_in(group, -1)
    # A key that was shortened for the page names no group any more.
    if iteration < 0 or ":" not in group or group.endswith("…"):
        return None
    if example["index"] is None:
        return group_address(reader.name, iteration, group)
    return rollout_address(reader.name, iteration, group, example["index"])
