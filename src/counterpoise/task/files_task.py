r"""The `files` task: problems from files on this machine (`jsonl` is its older name).

    {"id": "7", "problem": "What is 1 + 1?", "answer": "2"}

JSON lines, JSON and parquet are read (read_files.py), and common column names are recognised
(columns.py): a plain text or chat messages, an answer where the reward needs one, a worked solution
for `poise warmup`, and a generic text, which is the prompt of the responses that `sample.anchors`
adds to a group (sample/anchors.py). All columns are kept for reward functions.

Held-out problems come from a second file, or are the `heldout` records whose ids have the lowest
hashes: they do not depend on the order of the file, and adding records changes few of them. (Ids
made from row numbers do depend on the order.)
No problem is in both sets: a training record that repeats a held-out text is dropped.
"""

from __future__ import annotations

from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.task.columns import DEFAULT_FIELDS, FieldOptions, read_prompts
from counterpoise.task.read_files import read_records
from counterpoise.task.split_heldout import split_prompts
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import Prompt


def load(
    path: str,
    *,
    heldout_path: str = "",
    heldout: int = 128,
    fields: FieldOptions = DEFAULT_FIELDS,
) -> TaskPrompts:
    """Load training and held-out problems; training problems keep the order of the file."""
    if not path:
        raise PoiseError("the files task needs a file or folder: set task.path")
    prompts, columns_line = read_prompts(read_records(path), fields, path)
    heldout_prompts = read_problems(heldout_path, fields) if heldout_path else heldout
    split = split_prompts(prompts, heldout_prompts, path)
    return TaskPrompts(Path(path).stem, split.train, split.heldout, columns_line, split.repeats)


def read_problems(path: str, fields: FieldOptions = DEFAULT_FIELDS) -> list[Prompt]:
    """All problems of one file or folder; an error names the line or row."""
    prompts, _ = read_prompts(read_records(path), fields, path)
    return prompts
