"""Read rollouts/step_00012.jsonl leniently, line by line: what pages, audits and the server read.

A line that is no rollout is skipped and counted as damaged, as is a last line that is still being
written. If a skipped line names its group, it takes up an index there: the rollouts after it keep
the index that plans.jsonl gives them. `read_groups` of rollout_files.py is the strict reader.

Nine tenths of a line are its lists of numbers, which come last. Where a line is as the store writes
it, only what comes before them is parsed, and tokens are counted by their commas: five times as
fast as parsing the line. Any other line is parsed whole.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.store.plain_values import plain_text
from counterpoise.store.turns import turns_from_record

NUMBERS_START = b', "prompt_tokens": ['
RESPONSE_START = b', "response_tokens": ['
LOGPROBS_START = b', "sampled_logprobs": ['
NUMBER_LISTS = ("prompt_tokens", "response_tokens", "sampled_logprobs")
LONGEST_LINE = 256 << 20  # bytes; a longer line is skipped
# The beginning of a line of ours; another trainer's import is written by the same code.
_GROUP_AT_START = re.compile(rb'\{"schema": \d+, "group": ("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """A stored rollout; None where the trainer did not write a field.

    Texts are as the model wrote them, but UTF-8 can hold them: `plain_text`.

    Example:
        RolloutLine("7:word_problems/train/12", 0, "Ana has ...", "= 11", "11", 1.0, 57)
    """

    group: str
    index: int  # in its group, in the order of the file; as in plans.jsonl
    prompt: str
    response: str
    answer: str
    reward: float  # NaN: not scored
    num_tokens: int | None  # of the response
    finished: bool | None = None
    prompt_id: str = ""
    anchor: bool = False  # a response to the generic prompt (sample.anchors)
    timed_out: bool = False  # the verifier stopped its comparison
    has_response: bool = True  # False: an import whose files hold no text of it
    advantage: float | None = None  # of an import whose plans are not known
    turns: Any = ()  # of an episode, as they are stored: they may be damaged
    sampled_logprobs: Sequence[float] | None = None  # only where lines are parsed whole
    offset: int = 0  # of the line in its file
    size: int = 0

    def response_start(self, most: int) -> str | None:
        """The first characters of the response; None if its text is not stored."""
        return self.response[:most] if self.has_response else None

    @property
    def environment_tokens(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """What an environment wrote: (position, tokens before the policy's token there)."""
        # Damaged turns are treated as absent, so that the policy's own tokens are still shown.
        try:
            turns = turns_from_record({"turns": self.turns})
        except (ValueError, TypeError, OverflowError):
            return ()
        return tuple(
            (turn.start, tuple(turn.observation.tolist()))
            for turn in turns
            if len(turn.observation)
        )


@dataclass(slots=True)
class DamagedLines:
    """How many lines of a file are no rollouts, and the first of them."""

    count: int = 0
    first_line: int = 0

    def add(self, line_number: int) -> None:
        self.first_line = self.first_line or line_number
        self.count += 1


def iterate_rollouts(
    path: Path, damaged: DamagedLines | None = None, *, parse_numbers: bool = False
) -> Iterator[RolloutLine]:
    """Yield the rollouts of a file in its order.

    With `parse_numbers` lists of numbers are read too, and a line whose lists are damaged is none.
    """
    rows_of_group: Counter[str] = Counter()
    offset = line_number = 0
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE):
            line_number += 1
            parsed = _parse(line, parse_numbers) if len(line) < LONGEST_LINE else None
            if parsed is not None:
                fields, num_tokens = parsed
                group = plain_text(fields["group"])
                yield _rollout_of(fields, group, rows_of_group[group], num_tokens, offset, line)
                rows_of_group[group] += 1
            else:
                if damaged is not None and line.strip():
                    damaged.add(line_number)
                if (damaged_group := _group_of_damaged_line(line)) is not None:
                    rows_of_group[damaged_group] += 1
            offset += len(line)


def _rollout_of(
    fields: dict[str, Any], group: str, index: int, num_tokens: int | None, offset: int, line: bytes
) -> RolloutLine:
    finished, logged = fields.get("finished"), fields.get("logged")
    return RolloutLine(
        group=group,
        index=index,
        prompt=plain_text(fields.get("prompt", "")),
        response=plain_text(fields.get("response", "")),
        answer=plain_text(fields.get("answer") or ""),
        reward=_parse_reward(fields["reward"]),
        num_tokens=num_tokens,
        finished=None if finished is None else bool(finished),
        prompt_id=plain_text(fields.get("prompt_id", group)),
        anchor=bool(fields.get("anchor", False)),
        timed_out=isinstance(logged, dict) and logged.get("lost") == "timeout",
        has_response="response" in fields,
        advantage=finite_number(fields.get("advantage")),
        turns=fields.get("turns", ()),
        sampled_logprobs=fields.get("sampled_logprobs"),
        offset=offset,
        size=len(line),
    )


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
            parsed = parse_line(file.read(size))
    except OSError:
        return None
    return parsed[0] if parsed else None


def _parse(line: bytes, parse_numbers: bool) -> tuple[dict[str, Any], int | None] | None:
    if not parse_numbers:
        return parse_line(line)
    fields = parse_whole_line(line)
    return None if fields is None else (fields, _count_tokens(fields))


def parse_line(line: bytes) -> tuple[dict[str, Any], int | None] | None:
    """(fields but the lists of numbers, tokens of the response); None if it is no rollout."""
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
    head = {name: value for name, value in whole.items() if name not in NUMBER_LISTS}
    return head, _count_tokens(whole)


def parse_whole_line(line: bytes) -> dict[str, Any] | None:
    """All fields of a line; None if it is no rollout."""
    fields = _parse_object(line)
    return fields if fields is not None and _is_rollout(fields) else None


def _parse_object(text: bytes) -> dict[str, Any] | None:
    try:
        # Bytes that are not UTF-8 become replacement characters, as in the strict reader.
        value = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_rollout(fields: dict[str, Any]) -> bool:
    return {"group", "reward"} <= fields.keys()


def _parse_reward(value: object) -> float:
    """The reward of a stored rollout; NaN where the verifier gave none, or it is no number."""
    try:
        return float(value)  # type: ignore[arg-type]  # anything may stand in the file
    except (TypeError, ValueError, OverflowError):
        return math.nan


def finite_number(value: object) -> float | None:
    """The number in a field that a trainer may have left out, or filled with something else.

    Example:
        >>> finite_number(0.5), finite_number(True), finite_number("0.5"), finite_number(None)
        (0.5, None, None, None)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = _parse_reward(value) if is_number else math.nan
    return number if math.isfinite(number) else None


def _count_tokens(fields: dict[str, Any]) -> int | None:
    """Tokens of a stored response, of which an import may know only the number; None: not known.

    Example:
        >>> _count_tokens({"response_tokens": [5, 9, 2]}), _count_tokens({"num_tokens": 57})
        (3, 57)
    """
    tokens = fields.get("response_tokens")
    if isinstance(tokens, list):
        return len(tokens)
    number = fields.get("num_tokens")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _group_of_damaged_line(line: bytes) -> str | None:
    """The group that a line names at its beginning, though the rest of it cannot be read.

    Rollouts are numbered within their group by their order in the file: a reader that did not count
    a damaged line would show each rollout after it under the number of the one before.

    Example:
        >>> _group_of_damaged_line(b'{"schema": 1, "group": "7:sums/3", "prompt_id": "su')
        '7:sums/3'
    """
    match = _GROUP_AT_START.match(line)
    try:
        return plain_text(json.loads(match[1].decode("utf-8", "replace"))) if match else None
    except ValueError:
        return None
