"""What becomes of text that would control the terminal, and of messages too long for a line."""

from __future__ import annotations

import io
import sys

import pytest

from counterpoise.terminal import (
    LONGEST_MESSAGE,
    echo,
    one_line,
    replace_unencodable,
    shorten,
    spell_out_controls,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jcleared", r"\x1b[2Jcleared"),  # an escape sequence
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31mC1", r"\x9b31mC1"),  # the same in one character
        ("over\rwritten\b", r"over\rwritten\x08"),
        ("two\nlines\u2028three\x85four", r"two\nlines\u2028three\x85four"),
        ("exe.\u202egnp", r"exe.\u202egnp"),  # read from right to left
        ("\u2066isolated\u2069\u200f", r"\u2066isolated\u2069\u200f"),
        ("zero\u200bwidth\ufeff\U000e0041", r"zero\u200bwidth\ufeff\U000e0041"),
        ("half \ud800", r"half \ud800"),
        ("\x7f\x00", r"\x7f\x00"),
    ],
)
def test_characters_that_control_a_terminal_are_spelled_out(text: str, shown: str) -> None:
    assert one_line(text) == shown


@pytest.mark.parametrize("text", ["plain [red] \\ text", "Ana hat 3 Äpfel…", "שלום عالم 你好　∑ é"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_lines_and_tabs_may_stay_where_there_are_several_lines() -> None:
    assert spell_out_controls("a\n\tb\r", keep="\n\t") == "a\n\tb\\r"


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    message = "file.jsonl:3: id '" + 5000 * "x" + "' is also on line 1"
    shown = one_line(message)
    assert len(shown) == LONGEST_MESSAGE
    assert shown.startswith("file.jsonl:3: id 'xxx")
    assert shown.endswith("xxx' is also on line 1")
    assert shown.count("…") == 1
    assert shorten("x" * LONGEST_MESSAGE) == "x" * LONGEST_MESSAGE
    assert len(one_line("\x1b" * 5000)) == LONGEST_MESSAGE


def test_a_terminal_without_unicode_shows_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    replace_unencodable()
    echo("Äpfel\x1b\n…")
    assert raw.getvalue() == b"\\xc4pfel\\x1b\n\\u2026\n"
