"""tokens/, pushes/ and vocabulary.json of a run, as the page and `poise look` read them."""

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
    """The trained tokens of one iteration, the tokens of a row together and in order.

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
    """Who pushed the tokens of a few watched rows, the strongest of either sign."""

    columns: Columns  # row, position, by_row, by_position, push

    @property
    def rows(self) -> set[int]:
        """Rows whose tokens were watched."""
        return set(self.columns["row"].tolist())

    def on_token(self, row: int, position: int) -> Iterator[tuple[int, int, float]]:
        """(row, position, push) of each token that pushed this one, the strongest first."""
        c = self.columns
        found = np.flatnonzero((c["row"] == row) & (c["position"] == position))
        for k in found[np.argsort(-np.abs(c["push"][found]), kind="stable")]:
            yield int(c["by_row"][k]), int(c["by_position"][k]), float(c["push"][k])


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The text of every token, fit to be shown: characters that leave no mark are spelled out.

    A token without a text is shown by number.

    Example:
        Vocabulary(("a", " b"))[1] == " b"        Vocabulary(())[7] == "⟨7⟩"
    """

    texts: tuple[str, ...]

    def __getitem__(self, token: int) -> str:
        text = self.texts[token] if 0 <= token < len(self.texts) else ""
        return "".join(map(_marked, make_visible(text, MAX_TOKEN_CHARACTERS))) or f"⟨{token}⟩"


def _marked(character: str) -> str:
    seen = character.isprintable() or character in "\n\t"
    return character if seen else f"⟨U+{ord(character):04X}⟩"


def stored_iterations(run: Path) -> list[int]:
    """Iterations whose tokens were stored, in order."""
    names = (path.stem.removeprefix("step_") for path in (run / "tokens").glob("step_*.parquet"))
    return sorted(int(name) for name in names if name.isdigit())


def read_trace(run: Path, iteration: int) -> IterationTrace:
    columns = _read(run / "tokens" / f"step_{iteration:05d}.parquet", TOKEN_COLUMNS)
    order = np.lexsort((columns["position"], columns["row"]))
    columns = {name: values[order] for name, values in columns.items()}
    rows, starts = np.unique(columns["row"], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    spans = map(slice, starts.tolist(), ends)
    return IterationTrace(iteration, columns, dict(zip(rows.tolist(), spans, strict=True)))


def tokens_without_gradient(columns: Columns) -> NDArray[np.bool_]:
    """Tokens with an advantage and no gradient of their own: clipped, or left out by a rule. [N]"""
    if "pull" not in columns:
        return np.zeros(len(columns["token"]), dtype=bool)
    return (columns["pull"] == 0) & (columns["advantage"] != 0)


def read_pushes(run: Path, iteration: int) -> StoredPushes | None:
    """None where the run was not watched."""
    path = run / "pushes" / f"step_{iteration:05d}.parquet"
    return StoredPushes(_read(path, PUSH_COLUMNS)) if path.is_file() else None


def read_vocabulary(run: Path) -> Vocabulary:
    """Empty for a run that has none: tokens are then shown by number."""
    path = run / "vocabulary.json"
    if not path.is_file():
        return Vocabulary(())
    try:
        texts = json.loads(path.read_text(encoding="utf-8", errors="replace"))["tokens"]
        return Vocabulary(tuple(str(text) for text in texts))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        why = first_line(fault)
        raise PoiseError(f"{path} is damaged: {why}; remove it to see numbers") from fault


def _read(path: Path, needed: set[str]) -> Columns:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as fault:
        first = str(fault).partition("\n")[0]
        raise PoiseError(f"{path} is damaged: {first}") from fault
    if missing := sorted(needed - set(table.column_names)):
        raise PoiseError(f"{path} is damaged: it has no column {missing[0]}")
    return {name: table[name].to_numpy() for name in table.column_names}
