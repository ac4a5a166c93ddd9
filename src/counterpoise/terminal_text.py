r"""Text that is safe to show in a terminal: characters that would control it are spelled out.

Ids, field names, paths and option values come from files and command lines that somebody else may
have written. An escape sequence among them could move the cursor, recolour or retitle the window,
and a bidirectional override could reorder a path; here they become visible text such as `\x1b`.
Commands print by `echo`, messages of one line go through `one_line`, and terminal_console.py does
the same for what rich draws.
"""

from __future__ import annotations

import sys
import unicodedata
from typing import TextIO

# Control characters, invisible format characters (bidirectional overrides are among them), halves
# of surrogate pairs, which no encoding can write, and the two separators that end a line.
CONTROL_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
LINE_BREAKS = "\n\t"  # harmless where a text may have several lines
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
    print(spell_out_controls(str(text), keep=LINE_BREAKS), file=file or sys.stdout, flush=True)


def echo_message(message: object) -> None:
    """Print one line to stderr, for the person rather than for a pipe."""
    print(one_line(message), file=sys.stderr, flush=True)


def replace_unencodable() -> None:
    """Let characters that the terminal's encoding lacks appear as escapes; printing one would end
    the command with a traceback otherwise. stderr does so by itself."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a test or another program may have put its own stream here
        reconfigure(errors="backslashreplace")
