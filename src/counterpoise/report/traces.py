"""Read tokens/, pushes/ and vocabulary.json of a run, for the report and for `poise look`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from counterpoise.errors import PoiseError, first_line
from counterpoise.report.texts import make_visible

Columns = dict[str, NDArray[Any]]
TOKEN_COLUMNS = {"row", "position", "token", "advantage", "logprob", "entropy"}
PUSH_COLUMNS = {"row", "position", "by_row", "by_position", "push"}
MAX_TOKEN_CHARACTERS = 200  # characters


@dataclass(frozen=True, slots=True, eq=False)
class IterationTrace:
    """Trained tokens of one iteration, sorted by row and then by position.

    Example:
        trace.of(3)["displacement"]    of the tokens of row 3 of the plan: [T]
    """

    iteration: int
    columns: Columns  # each [N]
    row_spans: dict[int, slice]  # where a row's tokens lie; rows without signal have none

    def row_columns(self, row: int) -> Columns:
        return {name: values[self.row_spans[row]] for name, values in self.columns.items()}


@dataclass(frozen=True, slots=True, eq=False)
class StoredPushes:
    """For a few watched rows: the tokens that pushed theirs most, of either sign."""

    columns: Columns  # row, position, by_row, by_position, push

    @property
    def rows(self) -> set[int]:
        """Rows for which pushes were stored."""
        return set(self.columns["row"].tolist())

    def on_token(self, row: int, position: int) -> Iterator[tuple[int, int, float]]:
        """Yield (row, position, push) of every token that pushed this one, strongest first."""
        columns = self.columns
        matches = np.flatnonzero((columns["row"] == row) & (columns["position"] == position))
        for match in matches[np.argsort(-np.abs(columns["push"][matches]), kind="stable")]:
            yield (
                int(columns["by_row"][match]),
                int(columns["by_position"][match]),
                float(columns["push"][match]),
            )


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Displayable text of every token: characters that leave no mark are spelled out.

    A token without text is shown as its number.

    Example:
        Vocabulary(("a", " b"))[1] == " b"        Vocabulary(())[7] == "⟨7⟩"
    """

    texts: tuple[str, ...]

    def __getitem__(self, token: int) -> str:
        text = self.texts[token] if 0 <= token < len(self.texts) else ""
        return "".join(map(_marked, make_visible(text, MAX_TOKEN_CHARACTERS))) or f"⟨{token}⟩"


def _marked(character: str) -> str:
    is_visible = character.isprintable() or character in "\n\t"
    return character if is_visible else f"⟨U+{ord(character):04X}⟩"


def stored_iterations(run: Path) -> list[int]:
    """List the iterations whose tokens were stored, in order."""
    names = (path.stem.removeprefix("step_") for path in (run / "tokens").glob("step_*.parquet"))
    return sorted(int(name) for name in names if name.isdigit())


def read_trace(run: Path, iteration: int) -> IterationTrace:
    columns = _read(run / "tokens" / f"step_{iteration:05d}.parquet", TOKEN_COLUMNS)
    # Sorted by row and position, the tokens of a row are one contiguous slice.
    order = np.lexsort((columns["position"], columns["row"]))
    columns = {name: values[order] for name, values in columns.items()}
    rows, starts = np.unique(columns["row"], return_index=True)
    row_ends = [*starts[1:].tolist(), len(order)]
    spans = map(slice, starts.tolist(), row_ends)
    return IterationTrace(iteration, columns, dict(zip(rows.tolist(), spans, strict=True)))


def tokens_without_gradient(columns: Columns) -> NDArray[np.bool_]:
    """Mark tokens that have an advantage but no gradient: clipped, or masked by a step rule. [N]"""
    if "pull" not in columns:
        return np.zeros(len(columns["token"]), dtype=bool)
    return (columns["pull"] == 0) & (columns["advantage"] != 0)


def read_pushes(run: Path, iteration: int) -> StoredPushes | None:
    """Pushes of an iteration; None where the run stored none."""
    path = run / "pushes" / f"step_{iteration:05d}.parquet"
    return StoredPushes(_read(path, PUSH_COLUMNS)) if path.is_file() else None


def read_vocabulary(run: Path) -> Vocabulary:
    """Vocabulary of the run; an empty one, which shows tokens by number, where it has none."""
    path = run / "vocabulary.json"
    if not path.is_file():
        return Vocabulary(())
    try:
        texts = json.loads(path.read_text(encoding="utf-8", errors="replace"))["tokens"]
        return Vocabulary(tuple(str(text) for text in texts))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        why = first_line(fault)
        raise PoiseError(f"{path} is damaged: {why}; remove it to see token numbers") from fault


def _read(path: Path, needed: set[str]) -> Columns:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as fault:
        reason = str(fault).partition("\n")[0]
        raise PoiseError(f"{path} is damaged: {reason}") from fault
    if missing := sorted(needed - set(table.column_names)):
        raise PoiseError(f"{path} is damaged: it has no column {missing[0]}")
    return {name: table[name].to_numpy() for name in table.column_names}
