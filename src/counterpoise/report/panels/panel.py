"""The records that a panel returns to the page: a section and its charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One section of the page.

    A plain string is escaped wherever it lands; Markup (made by `render`) is taken as it is.

    Example:
        Panel("Buffer", "Rollouts that wait for an update.", body=(Figure(...), Figure(...)))
        Panel("Tokens", "...", render("tokens.html", ...), data=rows, assets=("tokens.js",))
    """

    title: str  # "" shows no heading
    caption: str | Markup
    body: Markup | ChartType | tuple[Figure, ...]
    before: Markup = Markup()  # shown above the charts
    after: Markup = Markup()  # shown below the charts
    label: str = ""  # entry in the list of sections; "" means the title
    data: Any = None  # JSON for the panel's script: `poise.data("NAME")`
    assets: tuple[str, ...] = ()  # .css and .js files of assets/, embedded once
