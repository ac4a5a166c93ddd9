"""Read tokens/, pushes/ and vocabulary.json of a run, for the report and for `poise look`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from counterpoise.errors import PoiseError, first_line
from counterpoise.report.texts import make_visible
from counterpoise.store.checksums import check_content
from counterpoise.store.folder import RunFolder
from counterpoise.store.parquet_errors import PARQUET_ERRORS
from counterpoise.store.schema import step_file_name

Columns = dict[str, NDArray[Any]]
TOKEN_COLUMNS = {"row", "position", "token", "advantage", "logprob", "entropy"}
PUSH_COLUMNS = {"row", "position", "by_row", "by_position", "push"}
MAX_TOKEN_CHARACTERS = 200  # a longer token is cut


@dataclass(frozen=True, slots=True, eq=False)
class IterationTrace:
    """Trained tokens of one iteration, sorted by row and then by position.

    Example:
        trace.row_columns(3)["displacement"]    # [T]: one value for each token of the plan's row 3
    """

    iteration: int
    columns: Columns  # each [N]
    row_spans: dict[int, slice]  # the tokens of each row; rows without signal have none

    def row_columns(self, row: int) -> Columns:
        """The columns of one row of the plan, each [T]."""
        return {
            column_name: values[self.row_spans[row]] for column_name, values in self.columns.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class StoredPushes:
    """The strongest pushes, of either sign, on every token of a few watched rows."""

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

    def __getitem__(self, token_id: int) -> str:
        token_text = self.texts[token_id] if 0 <= token_id < len(self.texts) else ""
        return (
            "".join(map(_spell_out_invisible, make_visible(token_text, MAX_TOKEN_CHARACTERS)))
            or f"⟨{token_id}⟩"
        )


def _spell_out_invisible(character: str) -> str:
    """A visible character unchanged; an invisible one as its code point, ⟨U+200B⟩."""
    is_visible = character.isprintable() or character in "\n\t"
    return character if is_visible else f"⟨U+{ord(character):04X}⟩"


def stored_iterations(run_folder: Path) -> list[int]:
    """List the iterations whose tokens were stored, in order."""
    return sorted(RunFolder(run_folder).step_files("tokens"))


def read_trace(run_folder: Path, iteration: int) -> IterationTrace:
    """Read the tokens of one iteration from tokens/."""
    columns = read_columns(run_folder / step_file_name("tokens", iteration), TOKEN_COLUMNS)
    # Sorted by row and position, the tokens of a row are one contiguous slice.
    sorted_order = np.lexsort((columns["position"], columns["row"]))
    columns = {column_name: values[sorted_order] for column_name, values in columns.items()}
    distinct_rows, row_starts = np.unique(columns["row"], return_index=True)
    row_ends = [*row_starts[1:].tolist(), len(sorted_order)]
    row_slices = map(slice, row_starts.tolist(), row_ends)
    return IterationTrace(
        iteration, columns, dict(zip(distinct_rows.tolist(), row_slices, strict=True))
    )


def tokens_without_gradient(columns: Columns) -> NDArray[np.bool_]:
    """Mark tokens that have an advantage but no gradient: clipped, or masked by a step rule. [N]"""
    if "pull" not in columns:
        return np.zeros(len(columns["token"]), dtype=bool)
    return (columns["pull"] == 0) & (columns["advantage"] != 0)


def read_pushes(run_folder: Path, iteration: int) -> StoredPushes | None:
    """Pushes of an iteration; None if the run did not store any."""
    parquet_path = run_folder / step_file_name("pushes", iteration)
    if not parquet_path.is_file():
        return None
    return StoredPushes(read_columns(parquet_path, PUSH_COLUMNS))


def read_vocabulary(run_folder: Path) -> Vocabulary:
    """Vocabulary of the run; if it has none, an empty one, which shows tokens by number."""
    json_path = run_folder / "vocabulary.json"
    if not json_path.is_file():
        return Vocabulary(())
    try:
        token_texts = json.loads(json_path.read_text(encoding="utf-8", errors="replace"))["tokens"]
        return Vocabulary(tuple(str(token_text) for token_text in token_texts))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        reason = first_line(fault)
        raise PoiseError(
            f"{json_path} is damaged: {reason}; remove it to see token numbers"
        ) from fault


def read_columns(parquet_path: Path, required_columns: set[str]) -> Columns:
    """All columns of a parquet file; an error names the first required one that is missing."""
    if not parquet_path.is_file():
        raise PoiseError(f"{parquet_path} is missing")
    check_content(parquet_path)
    try:
        table = pq.read_table(parquet_path)
    except PARQUET_ERRORS as fault:
        reason = str(fault).partition("\n")[0]
        raise PoiseError(f"{parquet_path} is damaged: {reason}") from fault
    if missing_columns := sorted(required_columns - set(table.column_names)):
        raise PoiseError(f"{parquet_path} is damaged: it has no column {missing_columns[0]}")
    return {column_name: table[column_name].to_numpy() for column_name in table.column_names}
