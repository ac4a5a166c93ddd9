r"""Text that is safe to show in a terminal: characters that would control it are spelled out.

Ids, field names, paths and option values come from files and command lines that somebody else may
have written. An escape sequence among them could move the cursor, recolour or retitle the window,
and a bidirectional override could reorder a path; here they become visible text such as `\x1b`.
Commands print by `echo`, messages of one line go through `one_line`, and `TerminalConsole` does the
same for what rich draws.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# Control characters, invisible format characters (bidirectional overrides are among them), halves
# of surrogate pairs, which no encoding can write, and the two separators that end a line.
CONTROL_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
LINE_LAYOUT = "\n\t"  # line breaks and tabs: harmless where a text may have several lines
LONGEST_MESSAGE = 1000  # characters; a message is longer only if a value inside it is


def spell_out_controls(text: str, keep: str = "") -> str:
    r"""The text with every character that could control a terminal as a Python escape.

    Example:
        >>> print(spell_out_controls("a\x1b[31mb\u202ec\n"))
        a\x1b[31mb\u202ec\n
    """
    if text.isprintable():  # the quick way, and the usual one
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in CONTROL_CATEGORIES and character not in keep
        else character
        for character in text
    )


def shorten(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """At most `longest` characters: what is too much is cut out of the middle, because a message
    begins with the place of a fault and ends with its remedy.

    Example:
        >>> shorten("abcdefghij", longest=5)
        'ab…ij'
    """
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return f"{text[: longest - 1 - tail]}…{text[-tail:]}"


def one_line(message: object, longest: int = LONGEST_MESSAGE) -> str:
    r"""A message as one line of bounded length that cannot control the terminal.

    Example:
        >>> print(one_line("no field 'a\nb'"))
        no field 'a\nb'
    """
    return shorten(spell_out_controls(str(message)), longest)


def echo(text: object, file: TextIO | None = None) -> None:
    """Print what a command answers; it may have several lines."""
    print(spell_out_controls(str(text), keep=LINE_LAYOUT), file=file or sys.stdout, flush=True)


def echo_message(message: object) -> None:
    """Print one line to stderr, for the person rather than for a pipe."""
    print(one_line(message), file=sys.stderr, flush=True)


def replace_unencodable() -> None:
    """Let characters that the terminal's encoding lacks appear as escapes; printing one would end
    the command with a traceback otherwise. stderr does so by itself."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a test or another program may have put its own stream here
        reconfigure(errors="backslashreplace")


# The console that commands draw on: rich's, but texts are texts.
#
# Brackets are no markup unless a call asks for it (our own styles come in `Text` objects), and
# characters that would control the terminal are spelled out, whatever part of a table or a progress
# bar they stand in. The control codes that rich itself writes pass.


class TerminalConsole(Console):
    """
    Example:
        TerminalConsole(stderr=True).print("[red]\\x1b[2J")    prints these letters, and no colour
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        # Strings are spelled out before they are measured, so that tables keep their columns.
        return super().render_str(spell_out_controls(text, keep=LINE_LAYOUT), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # The characters of `Text` objects did not pass through `render_str`.
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=spell_out_controls(segment.text, keep=LINE_LAYOUT))
