"""The record that a panel returns to the page: a section of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from counterpoise.report.charts.figure import Figure

if TYPE_CHECKING:
    from altair.typing import ChartType


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
