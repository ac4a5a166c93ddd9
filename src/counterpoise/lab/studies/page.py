"""Write a folder of studies as one page: the paper's claim, our numbers, and the rule that judges.

An experiment (lab/experiments/) is a user's own study: it may have several hypotheses, each with a
verdict, and has no paper behind it. If it is alone in its folder, the page carries its title.
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
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels.panel import Panel
from counterpoise.report.panels.summary import format_duration
from counterpoise.variants import STUDIES

StudyResult = dict[str, Any]  # one NAME.json, as statistics/finding.py writes it
REQUIRED_KEYS = {"study", "title", "shows", "claim", "rule", "verdict", "because", "numbers"}
VERDICT_MARKS = {
    "replicated": "✓",
    "not replicated": "✗",
    "inconclusive": "?",
    "untestable here": "–",
}
ASSETS = ("studies.css",)
VISIBLE_NUMBERS = 10  # numbers shown at once; a click unfolds the rest


def write_studies_page(folder: Path, out: Path, only: str | None = None) -> Path:
    """Write the page of all studies in `folder`, or of one of them by name."""
    results = read_results(folder)
    if only is not None:
        results = [result for result in results if result["study"] == only]
    if not results:
        missing = f"no study {only}" if only else "no studies"
        raise PoiseError(f"{folder} holds {missing}: run `poise study` with --out {folder} first")
    # A lone experiment needs no overview: the page is its panel.
    if only is None and len(results) == 1 and "hypotheses" in results[0]:
        (result,) = results
        panel = replace(study_panel(folder, result), title="")
        return write_page(
            out, assemble_page("Counterpoise experiment", result["title"], {result["study"]: panel})
        )
    panels = {result["study"]: study_panel(folder, result) for result in results}
    if only is None:
        panels = {"overview": overview_panel(results), **panels}
        return write_page(out, assemble_page("Counterpoise studies", folder.resolve().name, panels))
    return write_page(out, assemble_page("Counterpoise study", only, panels))


def read_results(folder: Path) -> list[StudyResult]:
    """The results of a folder: known studies in the order of the registry, then all others."""
    order = list(STUDIES)
    results = [result for path in sorted(folder.glob("*.json")) if (result := _read_result(path))]
    return sorted(
        results,
        key=lambda result: order.index(result["study"]) if result["study"] in order else len(order),
    )


def _read_result(path: Path) -> StudyResult | None:
    """The result in a JSON file; None for JSON that is not a study."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise PoiseError(f"{path} is damaged: {fault}; remove it to judge again") from fault
    is_study = isinstance(content, dict) and content.keys() >= REQUIRED_KEYS
    return content if is_study and content["verdict"] in VERDICT_MARKS else None


def overview_panel(results: list[StudyResult]) -> Panel:
    tally = [
        (verdict, VERDICT_MARKS[verdict], sum(result["verdict"] == verdict for result in results))
        for verdict in VERDICT_MARKS
    ]
    return Panel(
        "",
        "",
        render(
            "studies_overview.html",
            results=[(result, hypothesis_verdicts(result)) for result in results],
            marks=VERDICT_MARKS,
            tally=tally,
            duration=format_duration,
            papers=any(result["shows"] for result in results),
        ),
        assets=ASSETS,
    )


def hypothesis_verdicts(result: StudyResult) -> list[tuple[str, str]]:
    """(hypothesis or claim, verdict), the deciding one first; a single verdict has the name ""."""
    verdicts = [
        (hypothesis["hypothesis"], hypothesis["verdict"])
        for hypothesis in result.get("hypotheses") or ()
    ]
    verdicts += [(claim["claim"], claim["verdict"]) for claim in result.get("claims") or ()]
    return verdicts if len(verdicts) > 1 else [("", result["verdict"])]


def study_panel(folder: Path, result: StudyResult) -> Panel:
    sizes = result.get("sizes") or {}
    settings = {
        result_key: result[result_key]
        for result_key in ("model", "budget", "seed", "rollouts", "set")
        if result_key in result
    } | sizes
    figures, no_figures_reason = _figures(folder, result["study"])
    return Panel(
        result["title"],
        "",
        figures,
        before=render(
            "study_head.html",
            result=result,
            hypotheses=hypothesis_verdicts(result),
            marks=VERDICT_MARKS,
        ),
        after=render(
            "study_numbers.html",
            result=result,
            numbers=[_number_row(number) for number in result["numbers"]],
            visible_count=VISIBLE_NUMBERS,
            settings=[
                (setting_name, _format_setting(setting_value))
                for setting_name, setting_value in settings.items()
            ],
            took=format_duration(result.get("seconds") or 0.0),
            why_none=no_figures_reason,
            papers=any(number.get("paper") is not None for number in result["numbers"]),
        ),
        label=result["study"].replace("_", " "),
        assets=ASSETS,
    )


def _figures(folder: Path, study_name: str) -> tuple[tuple[Figure, ...], str]:
    """(figures, reason if there are none). They are drawn from the table, without a model."""
    if (folder / f"{study_name}.toml").is_file():
        from counterpoise.lab.experiments.charts import load_figures

        return load_figures(folder, study_name), ""
    if study_name not in STUDIES:
        return (), f"This version has no study called {study_name}, so its figures cannot be drawn."
    records = read_records(folder / f"{study_name}.parquet")
    if records is None:
        return (), f"{study_name}.parquet is missing, so the figures cannot be drawn."
    return load_study(study_name).draw(records[0]), ""


# -- numbers ------------------------------------------------------------------------------------


def _number_row(number: dict[str, Any]) -> dict[str, Any]:
    """A number as text, and its positions in percent along a scale of its own."""
    unit = number.get("unit") or ""
    value, low, high, paper = (
        _finite_or_none(number.get(number_key)) for number_key in ("value", "low", "high", "paper")
    )
    interval = (
        f"{format_number(low, unit)} to {format_number(high, unit)}"
        if low is not None and high is not None
        else ""
    )
    # Every number has a scale of its own that includes 0; shares use the whole range up to 100 %.
    finite_values = [bound for bound in (value, low, high, paper, 0.0) if bound is not None]
    scale_start, scale_end = min(finite_values), max(finite_values)
    if unit == "share" and scale_start >= 0 and scale_end <= 1:
        scale_end = 1.0
    scale_width = scale_end - scale_start or 1.0

    def scale_position(position: float | None) -> float | None:
        return None if position is None else round(100 * (position - scale_start) / scale_width, 2)

    return {
        "name": number["name"],
        "ours": format_number(value, unit),
        "interval": interval,
        "paper": format_number(paper, unit),
        "unit": "" if unit == "share" else unit,
        "at": {
            "value": scale_position(value),
            "low": scale_position(low),
            "high": scale_position(high),
            "paper": scale_position(paper),
            "zero": scale_position(0.0),
        },
    }


def format_number(value: float | None, unit: str) -> str:
    """A number as text: shares in percent, a true minus sign, a dash for None.

    Example:
        >>> [format_number(0.4612, "share"), *(format_number(x, "") for x in (-0.002, 88312, None))]
        ['46.1 %', '−0.002', '88,312', '–']
    """
    if value is None:
        return "–"
    if unit == "share":
        percent = 100 * value
        has_one_decimal = percent == 0 or abs(percent) >= 0.1
        formatted = f"{percent:.1f}\u2009%" if has_one_decimal else f"{percent:.2g}\u2009%"
    elif abs(value) >= 1000:
        formatted = f"{value:,.0f}"
    else:
        formatted = f"{value:.3g}"
    return formatted.replace("-", "−")


def _finite_or_none(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _format_setting(value: Any) -> str:
    """A setting as text: lists without brackets."""
    if isinstance(value, list):
        return ", ".join(_format_setting(item) for item in value)
    return str(value) if isinstance(value, str | int | float) else json.dumps(value)
