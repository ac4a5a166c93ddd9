"""A chart with the words around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from altair.typing import ChartType


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """One chart of a panel, with its own title and note.

    Example:
        Figure(chart, title="Entropy", note="Mean over the trained tokens, in nats.")
    """

    chart: ChartType
    title: str | Markup
    note: str | Markup = ""
    keys: tuple[tuple[str, str], ...] = ()  # legend: (colour name of page.css, its meaning)
    wide: bool = False  # takes the whole width
