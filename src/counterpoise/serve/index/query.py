"""Filters, search and paging over the rollouts of a run.

A page continues after a place in the order (sort value, then iteration and row), not after a count:
rows that arrive in between neither repeat nor hide any. A search is words and "phrases in quotes",
all of which must occur in the prompt or the response, whatever their case.
"""

from __future__ import annotations

import base64
import json
import math
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.serve.answers import BadRequestError
from counterpoise.serve.index.fates import DROP_REASONS
from counterpoise.serve.index.manifest import Signature
from counterpoise.serve.index.table import KEY, RolloutTable

MOST_ROWS = 500  # of one page
LONGEST_SEARCH = 500  # characters
MOST_WORDS = 12
BINS = 20
DISTINCT_REWARDS = 12  # up to this many, each reward is a bin of its own
KEPT_SEARCHES = 8
KEPT_FILES = 64  # of searches: requests that read an older one have long ended
SORT_COLUMNS = {
    "iteration": "iteration",
    "reward": "reward",
    "length": "length",
    "advantage": "advantage",
}
DEFAULT_SORT = "-iteration"  # the newest first
SIGNS = {"positive": "advantage > 0", "negative": "advantage < 0", "zero": "advantage = 0"}
RANGES = {
    "reward_min": ("reward >= $", float),
    "reward_max": ("reward <= $", float),
    "length_min": ("length >= $", int),
    "length_max": ("length <= $", int),
    "iteration_min": ("iteration >= $", int),
    "iteration_max": ("iteration <= $", int),
}
FLAGS = {"cut": "NOT finished", "no_spread": "no_spread", "timeout": "timed_out"}
# All parameters that `RolloutQuery.from_address` reads.
ROLLOUT_PARAMETERS = (
    *RANGES, *FLAGS, "sign", "dropped", "prompt", "search", "sort", "after", "limit",
)  # fmt: skip
ROW_FIELDS = (
    "key", "iteration", "row", "group_name", "index", "prompt_id", "reward", "advantage", "length",
    "finished", "timed_out", "no_spread", "dropped", "decided_in", "plan_row", "step", "offset",
    "size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """What an address asks of the rollouts.

    Example:
        RolloutQuery.from_address({"search": "the answer", "sign": "negative", "sort": "-reward"})
    """

    conditions: tuple[tuple[str, str, Any], ...] = ()  # (name, SQL, value or None)
    words: tuple[str, ...] = ()
    sort: str = "iteration"
    descending: bool = False
    after: tuple[float, int] | None = None  # sort value and key of the last row seen
    limit: int = 50

    @classmethod
    def from_address(cls, parameters: Mapping[str, str]) -> RolloutQuery:
        conditions: list[tuple[str, str, Any]] = []
        for name, (condition, kind) in RANGES.items():
            if parameters.get(name):
                value = _parse_number(name, parameters[name], kind)
                conditions.append((name, f"{condition}{name}", value))
        for name, condition in FLAGS.items():
            if parameters.get(name, "") not in ("", "0", "false"):
                conditions.append((name, condition, None))
        if sign := parameters.get("sign"):
            conditions.append(("sign", _choose("sign", sign, SIGNS), None))
        if reason := parameters.get("dropped"):
            reasons = reason.split(",")
            for each in reasons:
                _choose("dropped", each, dict.fromkeys(DROP_REASONS, ""))
            conditions.append(("dropped", "list_contains($dropped, dropped)", reasons))
        if prompt := parameters.get("prompt"):
            conditions.append(("prompt", "prompt_id = $prompt", prompt))
        sort_text = parameters.get("sort") or DEFAULT_SORT
        sort = sort_text.removeprefix("-")
        _choose("sort", sort, SORT_COLUMNS)
        return cls(
            conditions=tuple(conditions),
            words=parse_search(parameters.get("search", "")),
            sort=sort,
            descending=sort_text.startswith("-"),
            after=decode_cursor(parameters.get("after", ""), sort_text),
            limit=_parse_limit(parameters.get("limit") or "50"),
        )

    def where(self, *without: str) -> tuple[str, dict[str, Any]]:
        """SQL of the filters and the values in it, without those that are named."""
        kept = [entry for entry in self.conditions if entry[0] not in without]
        sql = " AND ".join(condition for _, condition, _ in kept) or "true"
        return sql, {name: value for name, _, value in kept if value is not None}


def parse_search(text: str) -> tuple[str, ...]:
    """Folded words and quoted phrases of a search.

    Example:
        >>> parse_search('Boxed "the answer"')
        ('boxed', 'the answer')
    """
    if len(text) > LONGEST_SEARCH:
        raise BadRequestError(f"search takes at most {LONGEST_SEARCH} characters")
    matches = re.findall(r'"([^"]+)"|(\S+)', text)
    words = dict.fromkeys((phrase or word).casefold() for phrase, word in matches)
    usable = tuple(word.strip('"') for word in words if word.strip('"'))
    if len(usable) > MOST_WORDS:
        raise BadRequestError(f"search takes at most {MOST_WORDS} words; quote a phrase")
    return tuple(word.encode("utf-8", "replace").decode() for word in usable)


def encode_cursor(sort_text: str, value: float, key: int) -> str:
    text = json.dumps([sort_text, value if math.isfinite(value) else str(value), key])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, sort_text: str) -> tuple[float, int] | None:
    """(sort value, key) of the last row of the page before; None for the first page."""
    if not cursor:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        cursor_sort, value, key = json.loads(text)
        place = (float(value), int(key))
        if abs(place[1]) >= 2**63:
            raise ValueError("no key is so large")
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise BadRequestError("after is not a cursor of this server") from None
    if cursor_sort != sort_text:
        raise BadRequestError("after belongs to another sort order: leave it out")
    return place


def _choose(name: str, value: str, choices: Mapping[str, str]) -> str:
    if value not in choices:
        raise BadRequestError(f"{name}={value[:60]}: choose one of {', '.join(choices)}")
    return choices[value]


def _parse_number(name: str, text: str, kind: type) -> float:
    try:
        number = kind(text)
    except ValueError:
        raise BadRequestError(f"{name}={text[:60]} is not a number") from None
    if not math.isfinite(number) or abs(number) > 2**62:
        raise BadRequestError(f"{name}={text[:60]} is out of range")
    return number


def _parse_limit(text: str) -> int:
    limit = _parse_number("limit", text, int)
    if not 1 <= limit <= MOST_ROWS:
        raise BadRequestError(f"limit={text[:60]}: choose 1 to {MOST_ROWS}")
    return int(limit)


@dataclass(slots=True)
class SearchMatches:
    """Rows whose texts have all words, in the iterations that were searched so far."""

    keys: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    searched: dict[int, Signature] = field(default_factory=dict)
    file: Path | None = None  # the keys as parquet


class RolloutSearch:
    """Answers queries over one table; keeps the results of the last searches.

    A search over a run that is being trained looks only at iterations that are new since.
    """

    def __init__(self, table: RolloutTable) -> None:
        self.table = table
        self._matches: OrderedDict[tuple[str, ...], SearchMatches] = OrderedDict()
        self._counts: OrderedDict[Any, tuple[int, list[dict[str, float | None]]]] = OrderedDict()
        self._search_lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="poise-serve-")
        self._file_number = 0

    def close(self) -> None:
        self.table.close()
        self._folder.cleanup()

    def page(self, query: RolloutQuery) -> dict[str, Any]:
        """Rows of one page with the numbers of ROW_FIELDS, the total and the histogram."""
        cursor = self.table.cursor()
        try:
            source = self._source(query)
            rows = self._rows(cursor, source, query)
            total, histogram = self._count(cursor, source, query)
        finally:
            cursor.close()
        has_more = len(rows) > query.limit
        rows = rows[: query.limit]
        sort_text = f"{'-' if query.descending else ''}{query.sort}"
        return {
            "rows": rows,
            "total": total,
            "next": encode_cursor(sort_text, rows[-1]["sort_value"], rows[-1]["key"])
            if has_more
            else None,
            "histogram": histogram,
            "indexed": self.table.indexed_share,
        }

    def _source(self, query: RolloutQuery) -> str:
        """The table to select from: all rollouts, or those that the search matches."""
        if not query.words:
            return "rollouts"
        # Through a file, because DuckDB would import pandas to look at an array of Python.
        matches = sql_text(str(self._search(query.words)))
        return f"(SELECT rollouts.* FROM rollouts SEMI JOIN read_parquet({matches}) USING (key))"

    def _rows(
        self, cursor: duckdb.DuckDBPyConnection, source: str, query: RolloutQuery
    ) -> list[dict[str, Any]]:
        where, values = query.where()
        direction, comparison = ("DESC", "<") if query.descending else ("ASC", ">")
        # Rollouts without the value come last. Infinity instead of null lets the cursor's condition
        # compare them too.
        missing = "-inf" if query.descending else "inf"
        sort_value = f"coalesce({SORT_COLUMNS[query.sort]}, '{missing}'::DOUBLE)::DOUBLE"
        if query.after:
            where += (
                f" AND ({sort_value} {comparison} $after_value OR "
                f"({sort_value} = $after_value AND key {comparison} $after_key))"
            )
            values |= {"after_value": query.after[0], "after_key": query.after[1]}
        columns = ", ".join(f'"{name}"' for name in ROW_FIELDS)
        result = cursor.execute(
            f"SELECT {columns}, {sort_value} AS sort_value FROM {source} AS rollouts "
            f"WHERE {where} ORDER BY sort_value {direction}, key {direction} "
            f"LIMIT {query.limit + 1}",
            values,
        ).fetchall()
        names = (*ROW_FIELDS, "sort_value")
        return [dict(zip(names, row, strict=True)) for row in result]

    def _count(
        self, cursor: duckdb.DuckDBPyConnection, source: str, query: RolloutQuery
    ) -> tuple[int, list[dict[str, float | None]]]:
        """(rows in all, histogram of rewards); the histogram ignores the range of rewards."""
        cache_key = (self.table.version, query.words, repr(query.conditions))
        # Another request may remove the entry at any moment.
        if (known_answer := self._counts.get(cache_key)) is not None:
            return known_answer
        where, values = query.where()
        (total,) = cursor.execute(
            f"SELECT count(*) FROM {source} AS rollouts WHERE {where}", values
        ).fetchall()[0]
        answer = (total, self._histogram(cursor, source, query))
        self._counts[cache_key] = answer
        while len(self._counts) > 64:
            self._counts.popitem(last=False)
        return answer

    def _histogram(
        self, cursor: duckdb.DuckDBPyConnection, source: str, query: RolloutQuery
    ) -> list[dict[str, float | None]]:
        where, values = query.where("reward_min", "reward_max")
        where += " AND reward IS NOT NULL"
        counts = cursor.execute(
            f"SELECT reward, count(*) FROM {source} AS rollouts WHERE {where} "
            f"GROUP BY reward ORDER BY reward LIMIT {DISTINCT_REWARDS + 1}",
            values,
        ).fetchall()
        if len(counts) <= DISTINCT_REWARDS:
            return [
                {"low": reward, "high": reward, "least": reward, "largest": reward, "count": count}
                for reward, count in counts
            ]
        low, high = cursor.execute(
            f"SELECT min(reward), max(reward) FROM {source} AS rollouts WHERE {where}", values
        ).fetchall()[0]
        width = (high - low) / BINS
        if not math.isfinite(width) or width <= 0:
            return []
        bins = cursor.execute(
            f"SELECT least(floor((reward - $low) / $width)::INTEGER, {BINS - 1}) AS bin, "
            f"min(reward), max(reward), count(*) FROM {source} AS rollouts "
            f"WHERE {where} GROUP BY bin",
            values | {"low": low, "width": width},
        ).fetchall()
        # A bin's edges also belong to its neighbours, so the page filters by the least and the
        # largest reward inside the bin.
        contents = {bin_number: numbers for bin_number, *numbers in bins}
        histogram = []
        for bin_number in range(BINS):
            least, largest, count = contents.get(bin_number, (None, None, 0))
            is_last = bin_number == BINS - 1
            histogram.append(
                {
                    "low": low + bin_number * width,
                    "high": high if is_last else low + (bin_number + 1) * width,
                    "least": least,
                    "largest": largest,
                    "count": count,
                }
            )
        return histogram

    def _search(self, words: tuple[str, ...]) -> Path:
        """A file with the keys of the rows whose texts have all words."""
        with self._search_lock:
            current = self.table.iterations
            matches = self._matches.setdefault(words, SearchMatches())
            self._matches.move_to_end(words)
            while len(self._matches) > KEPT_SEARCHES:
                self._matches.popitem(last=False)
            stale = [key for key, value in matches.searched.items() if current.get(key) != value]
            new = sorted(key for key in current if matches.searched.get(key) != current[key])
            if stale or new or matches.file is None:
                kept = matches.keys[~np.isin(matches.keys >> 32, stale)]
                added = self._scan(words, new) if new else np.empty(0, np.int64)
                matches.keys = np.concatenate([kept, added])
                matches.searched = dict(current)
                matches.file = self._write_keys(matches.keys)
            return matches.file

    def _write_keys(self, keys: np.ndarray) -> Path:
        """A new file each time: a request may still be reading the one before."""
        self._file_number += 1
        path = Path(self._folder.name) / f"matches-{self._file_number}.parquet"
        # Not `pa.array(keys)`, which would import pandas: half a second at the first search.
        column = pa.Array.from_buffers(pa.int64(), len(keys), [None, pa.py_buffer(keys)])
        pq.write_table(pa.table({"key": column}), path, compression="none")
        expired = Path(self._folder.name) / f"matches-{self._file_number - KEPT_FILES}.parquet"
        expired.unlink(missing_ok=True)
        return path

    def _scan(self, words: tuple[str, ...], iterations: list[int]) -> np.ndarray:
        """Search the segments of some iterations; a word may stand in either text.

        Searching prompts costs little: they repeat, and a segment's dictionary stores each once.
        So each word is looked for in the prompts first. A word that no prompt has is required in
        the response; for the other words one pass over the responses finds which rows have them,
        and a row matches if its prompt or its response has the word.
        """
        segments = self.table.segment_paths(set(iterations))
        cursor = self.table.cursor()
        try:
            prompt_keys = [_rows_with_prompt(cursor, segments, word) for word in words]
            required = [
                word for word, keys in zip(words, prompt_keys, strict=True) if not len(keys)
            ]
            optional = {
                word: keys for word, keys in zip(words, prompt_keys, strict=True) if len(keys)
            }
            columns = _scan_responses(cursor, segments, required, list(optional))
        finally:
            cursor.close()
        keys = columns["key"]
        is_match = np.ones(len(keys), dtype=bool)
        for number, with_prompt in enumerate(optional.values()):
            is_match &= columns[f"has{number}"] | np.isin(keys, with_prompt)
        # A segment may hold iterations that were searched before.
        return keys[is_match & np.isin(keys >> 32, iterations)]


def sql_text(text: str) -> str:
    """A text as SQL; for names of our own files where a parameter cannot stand."""
    return "'" + text.replace("'", "''") + "'"


def _rows_with_prompt(
    cursor: duckdb.DuckDBPyConnection, segments: list[str], word: str
) -> np.ndarray:
    """Keys of the rows whose prompt has a word."""
    columns = cursor.execute(
        f"SELECT {KEY} AS key FROM read_parquet($segments) WHERE contains(prompt_text, $word)",
        {"segments": segments, "word": word},
    ).fetchnumpy()
    return np.asarray(columns["key"], dtype=np.int64)


def _scan_responses(
    cursor: duckdb.DuckDBPyConnection,
    segments: list[str],
    required: list[str],
    optional: list[str],
) -> dict[str, np.ndarray]:
    """Keys of rows whose response has all required words; `has0`, ...: each optional word."""
    values = {f"required{number}": word for number, word in enumerate(required)}
    where = " AND ".join(f"contains(response_text, ${name})" for name in values) or "true"
    flags = "".join(
        f", contains(response_text, $optional{number}) AS has{number}"
        for number in range(len(optional))
    )
    values |= {f"optional{number}": word for number, word in enumerate(optional)}
    columns = cursor.execute(
        f"SELECT {KEY} AS key{flags} FROM read_parquet($segments) WHERE {where}",
        {**values, "segments": segments},
    ).fetchnumpy()
    return {name: np.asarray(column) for name, column in columns.items()}
