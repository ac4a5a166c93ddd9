"""TensorBoard: event files in RUN/tensorboard.

Each start writes a complete file that begins with `purge_step=0`, which makes readers discard older
files. Rows carry the time at which they were written, so the relative time axis is that of
training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from counterpoise.files import folder_lock
from counterpoise.run.trackers.tracker import MetricRow, prepare_tracker_home


class TensorBoard:
    def __init__(self, run: Path, out: Path | None, about: Mapping[str, Any]) -> None:
        self.folder = prepare_tracker_home(run, out) / "tensorboard"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = ExitStack()
        self.lock.enter_context(folder_lock(self.folder))
        self.writer = SummaryWriter(str(self.folder), purge_step=0)
        self.writer.add_text("config", format_markdown_table(about))

    def log(self, row: MetricRow) -> None:
        for name, value in row.values.items():
            self.writer.add_scalar(name, value, row.iteration, row.time)
        self.writer.flush()  # so that a disk error is raised here

    def close(self, *, failed: bool) -> None:
        with self.lock:
            self.writer.close()


def format_markdown_table(about: Mapping[str, Any]) -> str:
    """The options as a Markdown table, one line per option.

    Example:
        >>> print(as_table({"schema": 1, "update": {"lr": 1e-6}}))
        | option | value |
        |---|---|
        | schema | `1` |
        | update.lr | `1e-06` |
    """
    lines = ["| option | value |", "|---|---|"]
    for name, value in about.items():
        inside = value if isinstance(value, Mapping) else {"": value}
        for key, each in inside.items():
            lines.append(f"| {name}{'.' * bool(key)}{key} | `{json.dumps(each)}` |")
    return "\n".join(lines)
