"""Read the texts of rollouts/step_00012.jsonl and make them safe to display.

Model output is untrusted text. The templates escape HTML; this module makes text displayable: it is
cut to a maximum length, and control characters and bidirectional overrides are spelled out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from counterpoise.store.stored_rollouts import RolloutLine, iterate_rollouts

MAX_CHARACTERS = 4000  # characters kept of one text

# Control characters become control pictures, C1 controls and surrogates the replacement
# character, and marks that turn the direction or have no width their code point: none of them may
# act on the page. elements.js of `poise serve` has the same list.
INVISIBLE_MARKS = (
    0x061C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF,
)  # fmt: skip
_VISIBLE_FORMS: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), 0xFFFD),
    **{code: f"⟨U+{code:04X}⟩" for code in INVISIBLE_MARKS},
}


def read_rollout_texts(jsonl_path: Path) -> Iterator[RolloutLine]:
    """Yield the rollouts that have a text, safe to display; nothing when there is no file."""
    if not jsonl_path.is_file():
        return
    for rollout in iterate_rollouts(jsonl_path):
        if rollout.has_response:
            yield replace(
                rollout,
                prompt=make_visible(rollout.prompt),
                response=make_visible(rollout.response),
                answer=make_visible(rollout.answer),
            )


def make_visible(raw_text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return at most `max_characters` characters, none of which can hide or reorder the others.

    Example:
        >>> make_visible("a\\x00b"), make_visible("abcdef", max_characters=3)
        ('a␀b', 'abc…')
    """
    shortened = raw_text[:max_characters] + "…" if len(raw_text) > max_characters else raw_text
    return shortened.replace("\r\n", "\n").translate(_VISIBLE_FORMS)
