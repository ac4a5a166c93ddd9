"""Read the texts of rollouts/step_00012.jsonl and make them safe to display.

Model output is untrusted text. The templates escape HTML; this module makes text displayable: it is
cut to a maximum length, control characters and bidirectional overrides are spelled out, and bytes
that are not UTF-8 are replaced. A line that is not a rollout is skipped; the others are still
shown, under their own numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.store.rollout_lines import count_tokens, group_of_damaged_line, parse_reward
from counterpoise.store.turns import turns_from_record

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


@dataclass(frozen=True, slots=True)
class RolloutText:
    """One stored rollout as text.

    Example:
        RolloutText("7:word_problems/train/12", 0, "Ana has ...", "= 11", "11", 1.0, 57)
    """

    group: str
    index: int  # position in the group; (group, index) identifies the row, as in plans.jsonl
    prompt: str
    response: str
    answer: str
    reward: float  # NaN: not scored
    tokens: int
    finished: bool = True
    # (position, token ids): what an environment wrote before the policy's token at that position
    environment_tokens: tuple[tuple[int, tuple[int, ...]], ...] = ()


def read_rollout_texts(jsonl_path: Path) -> Iterator[RolloutText]:
    """Yield the rollouts in the order of the file; nothing when there is no file."""
    if not jsonl_path.is_file():
        return
    # Rollouts of a group are numbered in the order of the file.
    rows_read: Counter[str] = Counter()
    with jsonl_path.open("rb") as jsonl_file:
        for line in jsonl_file:
            record = _parse_rollout(line.decode("utf-8", "replace"))
            if record is None:
                if (damaged_group := group_of_damaged_line(line)) is not None:
                    rows_read[damaged_group] += 1
                continue
            group_name = str(record["group"])
            yield RolloutText(
                group=group_name,
                index=rows_read[group_name],
                prompt=make_visible(str(record.get("prompt", ""))),
                response=make_visible(str(record["response"])),
                answer=make_visible(str(record.get("answer", ""))),
                reward=parse_reward(record["reward"]),
                tokens=count_tokens(record) or 0,
                finished=bool(record.get("finished", True)),
                environment_tokens=_environment_tokens(record),
            )
            rows_read[group_name] += 1


def _environment_tokens(record: dict[str, Any]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Tokens that an environment wrote, each with the position it was inserted before."""
    # Damaged turns are treated as absent, so that the policy's own tokens are still shown.
    try:
        turns = turns_from_record(record)
    except (ValueError, TypeError, OverflowError):
        return ()
    return tuple(
        (turn.start, tuple(turn.observation.tolist())) for turn in turns if len(turn.observation)
    )


def _parse_rollout(json_line: str) -> dict[str, Any] | None:
    """The record of one line; None where the line is not a rollout."""
    try:
        record = json.loads(json_line)
    except (ValueError, RecursionError):
        return None
    is_rollout = isinstance(record, dict) and {"group", "response", "reward"} <= record.keys()
    return record if is_rollout else None


def make_visible(raw_text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return at most `max_characters` characters, none of which can hide or reorder the others.

    Example:
        >>> make_visible("a\\x00b"), make_visible("abcdef", max_characters=3)
        ('a␀b', 'abc…')
    """
    shortened = raw_text[:max_characters] + "…" if len(raw_text) > max_characters else raw_text
    return shortened.replace("\r\n", "\n").translate(_VISIBLE_FORMS)
