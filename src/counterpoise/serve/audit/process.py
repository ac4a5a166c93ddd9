"""The process that audits a run: `python -m counterpoise.serve.audit.process FOLDER RUN ROOT`.

An audit reads every rollout and compares answers, minutes of work for a long run, so it does not
happen in the server. It runs at low priority: training comes first. Progress goes to standard
output, a line of JSON for every few files. When the server ends, the pipe is closed, so writing the
next line of progress fails and ends this process. The result is FOLDER/audit.json, with the offline
page beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise import __version__
from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write
from counterpoise.report.audit.page import write_audit_page
from counterpoise.report.audit.rank import audit_run, report_to_data
from counterpoise.report.audit.run_files import Progress
from counterpoise.report.audit.sections import audit_sections, first_finding, summary_facts
from counterpoise.report.charts.render import nan_to_none
from counterpoise.serve.audit.audited_files import PAGE_FILE, RESULT_FILE, state_of_files
from counterpoise.serve.discover import check_links, is_inside
from counterpoise.terminal import echo

NICENESS = 10
PROGRESS_SECONDS = 0.2  # between lines of progress


def main() -> None:
    os.nice(NICENESS)
    folder, run_folder, *roots = map(Path, sys.argv[1:])
    told_at = 0.0

    def tell(what: str, done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= PROGRESS_SECONDS or done == total:
            told_at = time.monotonic()
            echo(json.dumps([what, done, total]))

    write_audit(run_folder, roots, folder, tell)


def write_audit(run_folder: Path, roots: Sequence[Path], folder: Path, progress: Progress) -> None:
    """Audit a run and write the result into `folder`; a fault of the run's files is a result."""
    started = time.monotonic()
    state = state_of_files(run_folder)
    result: dict[str, Any]
    try:
        check_links(run_folder, roots)
        report = audit_run(
            run_folder, progress=progress, may_read=lambda path: is_inside(path, roots)
        )
        write_audit_page(report, folder / PAGE_FILE)
        first = first_finding(report)
        result = {
            "report": {
                **report_to_data(report),
                "facts": dict(summary_facts(report)),
                "first": first.name if first else None,
                "sections": [
                    {"level": each.level, "title": each.title, "caption": each.caption}
                    for each in audit_sections(report)
                ],
            }
        }
    except (PoiseError, OSError) as fault:
        result = {"problem": first_line(fault)}
    result |= {
        "version": __version__,
        "state": state,
        "seconds": time.monotonic() - started,
        "ended": time.time(),
    }
    # A result that a power cut damages is made again, so nothing is flushed to disk.
    with atomic_write(folder / RESULT_FILE, durable=False) as temporary:
        temporary.write_text(json.dumps(nan_to_none(result)), encoding="utf-8")


if __name__ == "__main__":
    main()
