"""A folder of studies as one page: what the paper says, what we found, and by which rule.

An experiment (experiment/) is a study of one's own: it may have several hypotheses, each with a
verdict, and no paper behind it. Alone in its folder it is the page, under its title.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.lab.studies.records import read_records
from counterpoise.lab.studies.study import load_study
from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import whole_page, write_page
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.panels.summary import duration
from counterpoise.variants import STUDIES

Found = dict[str, Any]  # one NAME.json, as statistics/finding.py writes it
NEEDED = {"study", "title", "shows", "claim", "rule", "verdict", "because", "numbers"}
MARKS = {"replicated": "✓", "not replicated": "✗", "inconclusive": "?"}
ASSETS = ("studies.css",)
FIRST = 10  # numbers in view; the rest unfolds


def write_studies(folder: Path, out: Path, only: str | None = None) -> Path:
    """Write the page of all studies in `folder`, or of one of them by name."""
    found = found_in(folder)
    if only is not None:
        found = [one for one in found if one["study"] == only]
    if not found:
        wanted = f"no study {only}" if only else "no studies"
        raise PoiseError(f"{folder} holds {wanted}: run `poise study` with --out {folder} first")
    if only is None and len(found) == 1 and "hypotheses" in found[0]:
        (one,) = found
        panel = replace(study_panel(folder, one), title="")
        return write_page(
            out, whole_page("Counterpoise experiment", one["title"], {one["study"]: panel})
        )
    panels = {one["study"]: study_panel(folder, one) for one in found}
    if only is None:
        panels = {"overview": overview(found), **panels}
        return write_page(out, whole_page("Counterpoise studies", folder.resolve().name, panels))
    return write_page(out, whole_page("Counterpoise study", only, panels))


def found_in(folder: Path) -> list[Found]:
    """The studies of a folder in the order of the registry, then those it does not know."""
    order = list(STUDIES)
    found = [one for path in sorted(folder.glob("*.json")) if (one := _read(path))]
    return sorted(
        found, key=lambda o: order.index(o["study"]) if o["study"] in order else len(order)
    )


def _read(path: Path) -> Found | None:
    """None for JSON that is no study."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise PoiseError(f"{path} is damaged: {fault}; remove it to judge again") from fault
    whole = isinstance(found, dict) and found.keys() >= NEEDED
    return found if whole and found["verdict"] in MARKS else None


def overview(found: list[Found]) -> Panel:
    tally = [(v, MARKS[v], sum(o["verdict"] == v for o in found)) for v in MARKS]
    return Panel(
        "",
        "",
        render(
            "studies_overview.html",
            found=[(one, hypotheses(one)) for one in found],
            marks=MARKS,
            tally=tally,
            duration=duration,
            papers=any(one["shows"] for one in found),
        ),
        assets=ASSETS,
    )


def hypotheses(one: Found) -> list[tuple[str, str]]:
    """(hypothesis, its verdict), the deciding one first; one without a name where there is one."""
    stated = [(h["hypothesis"], h["verdict"]) for h in one.get("hypotheses") or ()]
    return stated if len(stated) > 1 else [("", one["verdict"])]


def study_panel(folder: Path, one: Found) -> Panel:
    sizes = one.get("sizes") or {}
    settings = {k: one[k] for k in ("model", "budget", "seed") if k in one} | sizes
    figures, why_none = _figures(folder, one["study"])
    return Panel(
        one["title"],
        "",
        figures,
        before=render("study_head.html", one=one, hypotheses=hypotheses(one), marks=MARKS),
        after=render(
            "study_numbers.html",
            one=one,
            numbers=[_row(number) for number in one["numbers"]],
            first=FIRST,
            settings=[(name, _plain(value)) for name, value in settings.items()],
            took=duration(one.get("seconds") or 0.0),
            why_none=why_none,
            papers=any(number.get("paper") is not None for number in one["numbers"]),
        ),
        label=one["study"].replace("_", " "),
        assets=ASSETS,
    )


def _figures(folder: Path, name: str) -> tuple[tuple[Figure, ...], str]:
    """(figures, why there are none); they are drawn from the table, without a model."""
    if (folder / f"{name}.toml").is_file():
        from counterpoise.lab.experiments.charts import load_figures

        return load_figures(folder, name), ""
    if name not in STUDIES:
        return (), f"This version knows no study {name}, so its figures cannot be drawn."
    records = read_records(folder / f"{name}.parquet")
    if records is None:
        return (), f"{name}.parquet is missing, so the figures cannot be drawn."
    return load_study(name).draw(records[0]), ""


# -- numbers ------------------------------------------------------------------------------------


def _row(number: dict[str, Any]) -> dict[str, Any]:
    """A number as text and as places on a line from `low` to `high` end of its own scale."""
    unit = number.get("unit") or ""
    value, low, high, paper = (_finite(number.get(k)) for k in ("value", "low", "high", "paper"))
    interval = (
        f"{written(low, unit)} to {written(high, unit)}"
        if low is not None and high is not None
        else ""
    )
    known = [x for x in (value, low, high, paper, 0.0) if x is not None]
    left, right = min(known), max(known)
    if unit == "share" and left >= 0 and right <= 1:
        right = 1.0
    width = right - left or 1.0

    def at(x: float | None) -> float | None:
        return None if x is None else round(100 * (x - left) / width, 2)

    return {
        "name": number["name"],
        "ours": written(value, unit),
        "interval": interval,
        "paper": written(paper, unit),
        "unit": "" if unit == "share" else unit,
        "at": {
            "value": at(value),
            "low": at(low),
            "high": at(high),
            "paper": at(paper),
            "zero": at(0.0),
        },
    }


def written(x: float | None, unit: str) -> str:
    """
    Example:
        >>> written(0.4612, "share"), written(-0.00123, ""), written(88312.0, ""), written(None, "")
        ('46.1 %', '−0.00123', '88,312', '–')
    """
    if x is None:
        return "–"
    if unit == "share":
        percent = 100 * x
        plain = percent == 0 or abs(percent) >= 0.1
        text = f"{percent:.1f}\u2009%" if plain else f"{percent:.2g}\u2009%"
    elif abs(x) >= 1000:
        text = f"{x:,.0f}"
    else:
        text = f"{x:.3g}"
    return text.replace("-", "−")


def _finite(x: Any) -> float | None:
    return float(x) if isinstance(x, int | float) and math.isfinite(x) else None


def _plain(value: Any) -> str:
    """A setting as a reader writes it: lists without brackets."""
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return str(value) if isinstance(value, str | int | float) else json.dumps(value)
