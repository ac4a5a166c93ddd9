"""Read rollouts/step_00012.jsonl line by line, with where each rollout stands in the file.

Nine tenths of a line are its lists of numbers, which come last. Where a line is as the store writes
it, only what comes before them is parsed, and tokens are counted by their commas: five times as
fast as parsing the line. Any other line is parsed whole.

A line that is no rollout is skipped and counted as damaged, as is a last line that is still being
written. If a skipped line names its group, it takes up an index there: the rollouts after it keep
the index that plans.jsonl gives them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.store.rollout_lines import count_tokens, group_of_damaged_line, parse_reward

NUMBERS_START = b', "prompt_tokens": ['
RESPONSE_START = b', "response_tokens": ['
LOGPROBS_START = b', "sampled_logprobs": ['
LONGEST_LINE = 256 << 20  # bytes; a longer line is skipped


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """A rollout without its lists of numbers."""

    group: str
    index: int  # in its group, in the order of the file; as in plans.jsonl
    prompt_id: str
    prompt: str
    response: str
    answer: str
    reward: float  # NaN: not scored
    length: int  # tokens of the response
    finished: bool
    timed_out: bool  # the verifier stopped its comparison
    anchor: bool
    advantage: float | None  # of an import whose plans are not known
    offset: int  # of its line
    size: int
    has_response: bool = True  # False: an import whose files hold no text of it

    def response_start(self, most: int) -> str | None:
        """The first characters of the response; None if its text is not stored."""
        return self.response[:most] if self.has_response else None


@dataclass(slots=True)
class DamagedLines:
    """How many lines of a file are no rollouts, and the first of them."""

    count: int = 0
    first_line: int = 0

    def add(self, line_number: int) -> None:
        self.first_line = self.first_line or line_number
        self.count += 1


def read_stored_rollouts(path: Path, damaged: DamagedLines | None = None) -> Iterator[RolloutLine]:
    """Yield the rollouts of a file in its order."""
    rows_of_group: Counter[str] = Counter()
    offset = 0
    with path.open("rb") as file:
        line_number = 0
        while line := file.readline(LONGEST_LINE):
            line_number += 1
            record = parse_line(line) if len(line) < LONGEST_LINE else None
            if record is None:
                if damaged is not None and line.strip():
                    damaged.add(line_number)
                if (damaged_group := group_of_damaged_line(line)) is not None:
                    rows_of_group[plain_text(damaged_group)] += 1
            else:
                fields, length = record
                group = plain_text(fields["group"])
                yield RolloutLine(
                    group=group,
                    index=rows_of_group[group],
                    prompt_id=plain_text(fields.get("prompt_id", group)),
                    prompt=plain_text(fields.get("prompt", "")),
                    response=plain_text(fields.get("response", "")),
                    answer=plain_text(fields.get("answer", "")),
                    reward=parse_reward(fields["reward"]),
                    length=length,
                    finished=bool(fields.get("finished", True)),
                    timed_out=_why_no_verdict(fields.get("logged")) == "timeout",
                    anchor=bool(fields.get("anchor", False)),
                    advantage=_finite_number(fields.get("advantage")),
                    offset=offset,
                    size=len(line),
                    has_response="response" in fields,
                )
                rows_of_group[group] += 1
            offset += len(line)


def read_line_at(path: Path, offset: int, size: int) -> dict[str, Any] | None:
    """All fields of the rollout at a place of the file; None if there is none any more."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return parse_whole_line(file.read(size))
    except OSError:
        return None


def read_head_at(path: Path, offset: int, size: int) -> dict[str, Any] | None:
    """The fields before the lists of numbers, of the rollout at a place of the file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            record = parse_line(file.read(size))
    except OSError:
        return None
    return record[0] if record else None


def parse_line(line: bytes) -> tuple[dict[str, Any], int] | None:
    """(fields, tokens of the response); None if the line is no rollout."""
    # These patterns match keys, never text, because a quote inside a JSON string has a backslash
    # before it. A nested object may have a key of the same name, but the line's own lists are
    # written last, so `rfind` finds them.
    numbers = line.rfind(NUMBERS_START)
    response = line.find(RESPONSE_START, numbers) if numbers > 0 else -1
    if response > 0 and line.rstrip().endswith(b"]}"):
        start = response + len(RESPONSE_START)
        end = line.find(b"]", start)
        is_ours = line.startswith((LOGPROBS_START, b"}"), end + 1)
        fields = _parse_object(line[:numbers] + b"}") if is_ours else None
        if fields is not None and _is_rollout(fields):
            return fields, line.count(b",", start, end) + 1 if end > start else 0
    whole = parse_whole_line(line)
    if whole is None:
        return None
    return whole, count_tokens(whole) or 0


def parse_whole_line(line: bytes) -> dict[str, Any] | None:
    """All fields of a line; None if it is no rollout."""
    fields = _parse_object(line)
    return fields if fields is not None and _is_rollout(fields) else None


def _parse_object(text: bytes) -> dict[str, Any] | None:
    try:
        # Bytes that are not UTF-8 become replacement characters, as in the report.
        value = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_rollout(fields: dict[str, Any]) -> bool:
    return {"group", "reward"} <= fields.keys()


def plain_text(value: object) -> str:
    """A text that UTF-8 can hold: halves of surrogate pairs are replaced.

    Example:
        >>> plain_text("a\\ud800")
        'a?'
    """
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _finite_number(value: object) -> float | None:
    number = parse_reward(value)
    return number if math.isfinite(number) else None


def _why_no_verdict(logged: object) -> object:
    """Why the verifier has no verdict on a rollout, as it logged it; None where it has one."""
    return logged.get("lost") if isinstance(logged, dict) else None
