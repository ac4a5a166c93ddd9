"""The page of `poise contamination`: an overview, and the pairs of each benchmark."""

from __future__ import annotations

from pathlib import Path

from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels.contamination import Data, benchmark_panel, overview_panel


def write_contamination_page(data: Data, title: str, out: Path) -> Path:
    panels = {"overview": overview_panel("", data)}
    for benchmark in data["benchmarks"]:
        pairs = [match for match in data["matches"] if match["benchmark"] == benchmark["name"]]
        if pairs:
            panels[f"benchmark-{benchmark['name']}"] = benchmark_panel(benchmark, pairs)
    return write_page(out, assemble_page("Contamination", title, panels))
