"""The definition of a study: what it measures, how it is judged, and how it is drawn.

    measure(lab) -> records      needs a model; the only slow part; written to NAME.parquet
    judge(records) -> Finding    numbers with intervals and a verdict; written to NAME.json
    draw(records) -> figures     written to NAME.svg, NAME.png, NAME.html

`judge` and `draw` read the records alone, so a figure is redrawn without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from counterpoise.statistics.finding import Finding, Records
from counterpoise.variants import STUDIES

if TYPE_CHECKING:
    from counterpoise.lab.studies.harness import Lab
    from counterpoise.report.charts.figure import Figure


@dataclass(frozen=True, slots=True)
class Study:
    """One figure or table of the paper. lab/studies/proxy.py is the shortest example."""

    name: str
    title: str
    shows: str  # "Fig. 10"
    claim: str  # what the paper says, in our words
    rule: str  # when it counts as replicated, fixed before any run
    budgets: Mapping[str, Mapping[str, Any]]  # "quick" and "full": sizes, arms, seeds
    measure: Callable[[Lab], Records]
    judge: Callable[[Records], Finding]
    draw: Callable[[Records], tuple[Figure, ...]]


def load_study(name: str) -> Study:
    """The study with this name; an unknown name raises an error with a suggestion."""
    return cast(Study, STUDIES.load(name))
