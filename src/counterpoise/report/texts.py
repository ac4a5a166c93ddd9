"""What a page shows of rollouts/step_00012.jsonl: the words, not the token arrays.

Model output is foreign text. Escaping it is the templates' business; here it becomes text that
can be shown at all: cut to a length, control characters and bidirectional overrides spelled out,
bytes that are no UTF-8 replaced. A line that is no rollout is left out, the others still show.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.store.turns import turns_of

MAX_CHARACTERS = 4000  # characters kept of one text

_SHOWN: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), 0xFFFD),
    **{code: f"⟨U+{code:04X}⟩" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}


@dataclass(frozen=True, slots=True)
class RolloutText:
    """Example: RolloutText("7:word_problems/train/12", 0, "Ana has ...", "= 11", "11", 1.0, 57)"""

    group: str
    index: int  # place in the group: (group, index) names the row, as in plans.jsonl
    prompt: str
    response: str
    answer: str
    reward: float
    tokens: int
    finished: bool = True
    environment_tokens: tuple[
        tuple[int, tuple[int, ...]], ...
    ] = ()  # an environment's tokens, before which


def read_rollout_texts(path: Path) -> Iterator[RolloutText]:
    """Rollouts in the order of the file; none when there is no file."""
    if not path.is_file():
        return
    seen: Counter[str] = Counter()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            record = _record(line)
            if record is None:
                continue
            group = str(record["group"])
            yield RolloutText(
                group=group,
                index=seen[group],
                prompt=make_visible(str(record.get("prompt", ""))),
                response=make_visible(str(record["response"])),
                answer=make_visible(str(record.get("answer", ""))),
                reward=float(record["reward"]),
                tokens=len(record.get("response_tokens", ())),
                finished=bool(record.get("finished", True)),
                environment_tokens=_told(record),
            )
            seen[group] += 1


def _told(record: dict[str, Any]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """None where turns are damaged: the rollout's own tokens still show."""
    try:
        turns = turns_of(record)
    except (ValueError, TypeError, OverflowError):
        return ()
    return tuple((turn.start, tuple(turn.told.tolist())) for turn in turns if len(turn.told))


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and {"group", "response", "reward"} <= record.keys()
    return record if whole else None


def make_visible(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """At most `max_characters` characters, none of them able to hide or to reorder the others.

    Example:
        >>> visible("a\\x00b"), visible("abcdef", longest=3)
        ('a␀b', 'abc…')
    """
    cut = text[:max_characters] + "…" if len(text) > max_characters else text
    return cut.replace("\r\n", "\n").translate(_SHOWN)
