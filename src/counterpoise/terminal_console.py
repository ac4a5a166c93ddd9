"""The console that commands draw on: rich's, but texts are texts.

Brackets are no markup unless a call asks for it (`Text` objects carry the styles of ours), and
characters that would control the terminal are spelled out, whatever part of a table or a progress
bar they stand in. The control codes that rich itself writes pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from counterpoise.terminal_text import LINE_BREAKS, spell_out_controls


class TerminalConsole(Console):
    """
    Example:
        TerminalConsole(stderr=True).print("[red]\\x1b[2J")    prints these letters, and no colour
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        # Strings are spelled out before they are measured, so that tables keep their columns.
        return super().render_str(spell_out_controls(text, keep=LINE_BREAKS), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # `Text` objects were made elsewhere: their characters are met here at the latest.
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=spell_out_controls(segment.text, keep=LINE_BREAKS))
