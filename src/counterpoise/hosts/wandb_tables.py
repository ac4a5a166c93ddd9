"""Import tables that were logged to W&B: files/media/table/NAME_STEP_HASH.table.json.

    {"columns": ["step", "prompt", "completion", ...], "data": [[...], ...]}

TRL logs the table of its completions files (key `completions`), which is read by TRL's importer.
Tables of other tools need a prompt, a response and a reward; the step is a column, or else the
number in the file's name. Rows with equal prompts of a step are a group. A run may log tables under
several keys. Tables without these columns are left out, and so are those whose key names an
evaluation; the others must all have the same key.

Read in wandb 0.31.0 (sdk/data_types/table.py), TRL 1.16.0 and verl 0.9.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.formats import ImportContext, ImportedStep, RolloutSource
from counterpoise.hosts.importing.json_lines import check_step
from counterpoise.hosts.importing.text_rollouts import name_prompt, text_rollout
from counterpoise.hosts.tables.columns import COLUMN_NAMES
from counterpoise.hosts.trl.importer import REQUIRED_COLUMNS, read_tables

TABLE_FOLDERS = ("", "media/table", "files/media/table", "*/files/media/table",
                 "wandb/*/files/media/table")  # fmt: skip
NEEDED_COLUMNS = ("prompt", "response", "reward")
TEXT_COLUMNS = ("prompt", "completion")  # of TRL
EVALUATION_KEY = re.compile(
    r"(^|[^a-z])(val|valid|validation|eval|evaluation|test|held_?out)([^a-z]|$)"
)


def find_files(path: Path) -> list[Path]:
    """The tables of one run that hold rollouts, in the order of logging."""
    if path.is_file():
        return [path] if path.name.endswith(".table.json") else []
    files = [
        file
        for folder in TABLE_FOLDERS
        for file in path.glob(f"{folder}/**/*.table.json" if folder else "*.table.json")
    ]
    # wandb/latest-run is a link to one of the runs.
    distinct = {file.resolve(): file for file in sorted(files, reverse=True)}
    return sorted(distinct.values(), key=lambda file: (file.parent, _logged_step(file), file.name))


def _logged_step(file: Path) -> int:
    """7 of completions_7_0a1b2c.table.json; -1 if there is no such number."""
    fields = file.name.removesuffix(".table.json").rsplit("_", 2)
    return int(fields[1]) if len(fields) == 3 and fields[1].isdecimal() else -1


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    runs = {_run_folder(file) for file in files}
    if len(runs) > 1:
        names = ", ".join(sorted(run.name for run in runs)[:4])
        raise PoiseError(f"the folder holds tables of {len(runs)} runs ({names}): name one of them")
    columns_of_file = {file: _read_json(file)["columns"] for file in files}
    of_trl = [f for f, columns in columns_of_file.items() if set(REQUIRED_COLUMNS) <= set(columns)]
    if of_trl:
        context.notes.count("left out: {} with other columns", "table", len(files) - len(of_trl))
        yield from read_tables(of_trl, read_table, context)
        return
    readable = [f for f, columns in columns_of_file.items() if _choose_columns(columns)]
    if not readable:
        columns = ", ".join(map(str, columns_of_file[files[0]]))
        raise PoiseError(
            f"{files[0]}: no table of rollouts (columns: {columns}): expected prompt, completion "
            "and reward, or TRL's columns as in TRL 1.16.0"
        )
    context.notes.count("left out: {} with other columns", "table", len(files) - len(readable))
    context.refuse_reward_option("have one column of rewards, unless TRL wrote them")
    yield from _read_plain_tables(_tables_of_one_key(readable, context), context)


def _tables_of_one_key(files: Sequence[Path], context: ImportContext) -> list[Path]:
    """The tables of training; raises if they were logged under several keys."""
    files_of_key: dict[str, list[Path]] = {}
    for file in files:
        files_of_key.setdefault(_table_key(file), []).append(file)
    training_keys = [key for key in files_of_key if not EVALUATION_KEY.search(key.lower())]
    keys = training_keys or list(files_of_key)
    if len(keys) > 1:
        raise PoiseError(
            f"the run logged rollouts under {len(keys)} keys ({', '.join(sorted(keys)[:4])}): copy "
            "the tables of one of them into a folder, and import that"
        )
    if left_out := sorted(set(files_of_key) - set(keys)):
        context.notes.add(f"left out: tables of evaluations ({', '.join(left_out[:4])})")
    return files_of_key[keys[0]]


def _table_key(file: Path) -> str:
    """The key that a table was logged under; a slash in it becomes a folder.

    table/train/samples_7_0a1b.table.json has the key train/samples.
    """
    name = file.name.removesuffix(".table.json")
    key = name if _logged_step(file) < 0 else name.rsplit("_", 2)[0]
    folders = file.resolve().parent.parts
    media = _media_index(folders)
    return "/".join([*folders[media + 2 :], key]) if media is not None else key


def _run_folder(file: Path) -> Path:
    """The folder above files/media/table or media/table; else the one that the table is in."""
    folders = file.resolve().parent.parts
    media = _media_index(folders)
    if media is None:
        return file.resolve().parent
    return Path(*folders[: media - 1 if folders[media - 1] == "files" else media])


def _media_index(folders: Sequence[str]) -> int | None:
    """The index of the last `media` before a `table`; None if there is none.

    The last, because folders above the run may have these names too: /media is a mount point.
    """
    indices = [index for index, pair in enumerate(pairwise(folders)) if pair == ("media", "table")]
    return indices[-1] if indices else None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
        columns, rows = content["columns"], content["data"]
        if not isinstance(columns, list) or not all(len(row) == len(columns) for row in rows):
            raise ValueError("rows and columns do not match")
    except OSError as fault:
        raise PoiseError(f"{file} cannot be read: {fault.strerror}") from fault
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise PoiseError(
            f"{file} is no table of W&B ({first_line(fault)}): expected columns and data, as "
            "wandb 0.31.0 writes them"
        ) from fault
    return {"columns": [str(column) for column in columns], "data": rows}


def read_table(file: Path) -> pa.Table:
    """A table of TRL with the types of its parquet files."""
    content = _read_json(file)
    try:
        return _typed_table(content)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as fault:
        raise PoiseError(
            f"{file} holds values that TRL's columns do not have ({first_line(fault)}): log it "
            "again, or remove it"
        ) from fault


def _typed_table(content: dict[str, Any]) -> pa.Table:
    values_of = dict(zip(content["columns"], zip(*content["data"], strict=True), strict=False))
    columns: dict[str, pa.Array] = {}
    for name in content["columns"]:
        values = list(values_of.get(name, ()))
        if name not in TEXT_COLUMNS:
            values = [_number_or_value(value) for value in values]
        is_numeric = bool(values) and all(
            value is None or (isinstance(value, int | float) and not isinstance(value, bool))
            for value in values
        )
        if name == "step":
            columns[name] = pa.array([int(value) for value in values])
        elif is_numeric or name == "advantage":
            columns[name] = pa.array([_as_float(value) for value in values], pa.float64())
        elif name in TEXT_COLUMNS:
            columns[name] = pa.array(values)
        else:
            columns[name] = pa.array([json.dumps(value) for value in values])
    return pa.table(columns)


def _number_or_value(value: Any) -> Any:
    """W&B writes NaN and infinities as texts."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _as_float(value: Any) -> float:
    return float("nan") if value is None or isinstance(value, str) else float(value)


def _choose_columns(columns: Sequence[str]) -> dict[str, int]:
    """The indices of the columns of prompt, response and reward; {} unless all are there."""
    indices = {
        meaning: index
        for meaning in NEEDED_COLUMNS
        if (index := _find_column(columns, meaning)) is not None
    }
    return indices if len(indices) == len(NEEDED_COLUMNS) else {}


def _find_column(columns: Sequence[str], meaning: str) -> int | None:
    """The index of the column with the best name for this; None if there is none."""
    lowered = [column.lower() for column in columns]
    return next((lowered.index(name) for name in COLUMN_NAMES[meaning] if name in lowered), None)


def _read_plain_tables(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    """Tables with one row for each rollout, which may be of several steps."""
    # A table that grows is logged again and again: of each step the last table counts.
    file_of_step = {step: file for file in files for step in _rows_by_step(file)}
    for file in files:
        rows_of_step = _rows_by_step(file)
        columns = _read_json(file)["columns"]
        column_indices = _choose_columns(columns)
        answer_index = _find_column(columns, "answer")
        for step in sorted(step for step in rows_of_step if file_of_step[step] == file):
            rollouts = []
            for where, row in rows_of_step[step]:
                prompt, response, reward = (
                    row[column_indices[meaning]] for meaning in NEEDED_COLUMNS
                )
                prompt_id = name_prompt("wandb", prompt)
                answer = None if answer_index is None else row[answer_index]
                rollouts.append(
                    text_rollout(
                        prompt_id, f"{step}:{prompt_id}", prompt, response, reward, where, answer
                    )
                )
            yield ImportedStep(step, tuple(rollouts))
    context.notes.add(
        "the tables have no groups: rows of a step with equal prompts are taken as a group"
    )


def _rows_by_step(file: Path) -> dict[int, list[tuple[str, list[Any]]]]:
    content = _read_json(file)
    columns = content["columns"]
    step_index = next(
        (columns.index(name) for name in COLUMN_NAMES["step"] if name in columns), None
    )
    rows_of_step: dict[int, list[tuple[str, list[Any]]]] = {}
    for number, row in enumerate(content["data"], 1):
        where = f"{file}, row {number}"
        logged = _logged_step(file) if step_index is None else row[step_index]
        is_whole = isinstance(logged, float) and logged.is_integer()
        step = check_step(int(logged) if is_whole else logged, where)
        rows_of_step.setdefault(step, []).append((where, row))
    return rows_of_step


SOURCE = RolloutSource(
    "W&B tables",
    "wandb/RUN/files/media/table/*.table.json",
    find_files,
    read_steps,
    False,
)
