r"""The `hub` task: a dataset of the Hugging Face hub, or a local folder, read by `datasets`.

    path = "open-r1/DAPO-Math-17k-Processed:en"     a hub id, and after a colon its configuration
    path = "data/my_problems"                       a folder of .jsonl, .csv or .parquet files,
                                                    or one written by `save_to_disk`

Columns are recognised as in files (columns.py); without an id column the row number is the id. All
columns are kept for reward functions. Held-out problems come from a second split, or are taken out
of the training split by the hash of their ids (split_heldout.py). Offline (HF_HUB_OFFLINE=1) a hub
dataset must be in the local cache. A dataset's code is never run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.task.columns import DEFAULT_FIELDS, FieldOptions, read_prompts
from counterpoise.task.read_files import Record, look_up, to_json_value
from counterpoise.task.split_heldout import split_prompts
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import Prompt


def load(
    path: str,
    *,
    train_split: str = "train",
    heldout_split: str = "",
    heldout: int = 128,
    fields: FieldOptions = DEFAULT_FIELDS,
) -> TaskPrompts:
    """Load both splits in the order of their rows; ids begin with the split's name."""
    if not path:
        raise PoiseError("the hub task needs a dataset: set task.path to a hub id or a folder")
    if heldout_split == train_split:
        raise PoiseError(f"task.train_split and task.heldout_split are both '{train_split}'")
    prompts, columns_line = read_split(path, train_split, fields)
    heldout_prompts = read_split(path, heldout_split, fields)[0] if heldout_split else heldout
    split = split_prompts(prompts, heldout_prompts, path)
    return TaskPrompts(path, split.train, split.heldout, columns_line, split.repeats)


def read_split(path: str, split: str, fields: FieldOptions) -> tuple[list[Prompt], str]:
    """(the rows of one split as prompts, a line that says which columns were read)."""
    rows = open_split(path, split)
    columns = rows.column_names
    for role in ("problem", "answer", "id"):
        name = getattr(fields, role)
        is_default = name == getattr(DEFAULT_FIELDS, role)
        row_numbers_are_ids = role == "id" and not name
        # A dot reaches into an object, or is part of the name, as after `Dataset.flatten`.
        is_present = name in columns or name.partition(".")[0] in columns
        if not is_default and not row_numbers_are_ids and not is_present:
            raise PoiseError(
                f"{path}: no column '{name}' (columns: {', '.join(columns)}); set task.{role}_field"
            )
    records = [
        Record(f"{path} [{split}] row {row}", str(row), to_json_value(values))
        for row, values in enumerate(rows)
    ]
    if not records:
        raise PoiseError(f"{path}: no rows in its split '{split}'")
    ids = [look_up(record.values, fields.id) for record in records]
    if None not in ids and len(set(map(str, ids))) < len(ids):
        raise PoiseError(
            f"{path}: column '{fields.id}' repeats values; set task.id_field to another"
        )
    prompts, columns_line = read_prompts(records, fields, path)
    return [replace(prompt, id=f"{split}/{prompt.id}") for prompt in prompts], columns_line


def open_split(path: str, split: str) -> Any:
    """The split as a `datasets.Dataset`; errors of the package become one line with the remedy."""
    try:
        import datasets
    except ImportError:
        raise PoiseError(
            "the hub task needs the package datasets: pip install 'counterpoise[hub]'"
        ) from None
    folder = Path(path)
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            stored_dataset = datasets.load_from_disk(path)
            splits = (
                stored_dataset
                if isinstance(stored_dataset, datasets.DatasetDict)
                else {"train": stored_dataset}
            )
            if split not in splits:
                raise PoiseError(_no_split(path, split, sorted(splits)))
            return splits[split]
        # A local folder may have a colon in its name; a hub id may not.
        dataset_id, _, config = (path, "", "") if folder.exists() else path.partition(":")
        return datasets.load_dataset(dataset_id, config or None, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise PoiseError(_explain_load_error(path, split, str(error))) from None


def _explain_load_error(path: str, split: str, message: str) -> str:
    line = " ".join(message.split())
    if line.startswith("Unknown split"):
        return _no_split(path, split, line.partition("[")[2].partition("]")[0].split(", "))
    if line.startswith("Config name is missing"):
        choices = line.partition("[")[2].partition("]")[0]
        return f"{path}: several configurations; set task.path to '{path}:NAME' (one of {choices})"
    return f"{path}: cannot be loaded: {line[:300]}; check task.path and the network"


def _no_split(path: str, split: str, available: list[str]) -> str:
    split_names = ", ".join(name.strip("'\"") for name in available)
    return (
        f"{path}: no split '{split}' (splits: {split_names}); "
        "set task.train_split or task.heldout_split to one of these"
    )
