"""A view as one HTML file that opens without the server."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from counterpoise.errors import PoiseError, format_count
from counterpoise.report.content_policy import content_policy
from counterpoise.report.texts import make_visible
from counterpoise.serve.discover import check_links
from counterpoise.serve.index.query import DEFAULT_SORT, MOST_ROWS, RolloutSearch
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.rollouts import rollouts_view

REPORT_SECONDS = 300
NOT_FILTERS = ("sort", "after", "limit", "format")  # parameters that choose no rollouts
NO_TEXT = "no text stored"  # of a response that the imported files hold as tokens only
COLUMNS = ("iteration", "group", "index", "reward", "advantage", "length", "finished", "dropped")
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem;
  color: CanvasText; background: Canvas; color-scheme: light dark }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-top: 1px solid color-mix(in srgb, CanvasText 20%, Canvas) }
td.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; min-width: 16rem }
"""


def run_page(reader: RunReader) -> str:
    """The run's report, made in a process of its own: it may need more memory than the server."""
    check_links(reader.folder, reader.roots)
    with tempfile.TemporaryDirectory(prefix="poise-serve-") as folder:
        target = Path(folder) / "report.html"
        command = [sys.executable, "-m", "counterpoise.cli", "report", str(reader.folder)]
        try:
            result = subprocess.run(
                [*command, "--out", str(target)],
                capture_output=True,
                text=True,
                timeout=REPORT_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise PoiseError(
                f"the page took more than {REPORT_SECONDS} seconds: use poise report"
            ) from None
        if result.returncode or not target.is_file():
            lines = result.stderr.strip().splitlines() or ["no message"]
            raise PoiseError(f"the page could not be made: {lines[-1][:300]}")
        return target.read_text(encoding="utf-8")


def rollouts_page(reader: RunReader, search: RolloutSearch, parameters: Mapping[str, str]) -> str:
    """The current table, its first MOST_ROWS rows, as one page without scripts."""
    view = rollouts_view(reader, search, {**parameters, "limit": str(MOST_ROWS), "after": ""})
    filters = ", ".join(
        f"{name} {value}" for name, value in parameters.items() if value and name not in NOT_FILTERS
    )
    order = parameters.get("sort") or DEFAULT_SORT
    title = make_visible(f"{reader.name}: rollouts")
    shown = len(view["rows"])
    header = Markup("").join(
        Markup("<th scope=col>{}</th>").format(name) for name in (*COLUMNS, "prompt", "response")
    )
    body = Markup("\n").join(_table_row(row) for row in view["rows"])
    return Markup(
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<meta name=viewport content='width=device-width'><title>{title}</title>"
        "<style>{style}</style></head><body><h1>{title}</h1>"
        "<p>{shown} of {total} rollouts; {filters}; sorted by {order}.</p>{notes}"
        "<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></body></html>\n"
    ).format(
        policy=content_policy([]),
        title=title,
        style=Markup(STYLE),
        shown=shown,
        total=view["total"],
        filters=make_visible(filters or "no filter"),
        order=order.removeprefix("-") + (", largest first" if order.startswith("-") else ""),
        notes=Markup("").join(Markup("<p>{}</p>").format(note) for note in _notes(view)),
        header=header,
        body=body,
    )


def _notes(view: Mapping[str, Any]) -> list[str]:
    """What the table lacks, and what is wrong with the run's files."""
    notes = [*view["missing"].values(), *view["problems"]]
    if view["indexed"] < 1:
        notes.insert(0, f"{100 * view['indexed']:.0f} % of the iterations were indexed so far.")
    if unnamed := view["problem_count"] - len(view["problems"]):
        notes.append(f"{format_count(unnamed, 'more file')} with such problems")
    return [make_visible(note) for note in notes]


def _table_row(row: dict[str, Any]) -> Markup:
    cells = [Markup("<td>{}</td>").format(_cell(row[name])) for name in COLUMNS]
    texts = [
        Markup("<td class=text>{}</td>").format(make_visible(text))
        for text in (row["prompt"], NO_TEXT if row["response"] is None else row["response"])
    ]
    return Markup("<tr>{}</tr>").format(Markup("").join([*cells, *texts]))


def _cell(value: Any) -> Markup:
    if value is None:
        return escape("")
    if isinstance(value, float):
        return escape(f"{value:.4g}")
    return escape(make_visible(str(value)))
