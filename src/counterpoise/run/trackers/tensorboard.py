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
    def __init__(self, run_folder: Path, out: Path | None, run_options: Mapping[str, Any]) -> None:
        self.folder = prepare_tracker_home(run_folder, out) / "tensorboard"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = ExitStack()
        self.lock.enter_context(folder_lock(self.folder))
        self.writer = SummaryWriter(str(self.folder), purge_step=0)
        self.writer.add_text("config", format_markdown_table(run_options))

    def log(self, row: MetricRow) -> None:
        for metric_name, metric_value in row.values.items():
            self.writer.add_scalar(metric_name, metric_value, row.iteration, row.time)
        # Flush every row, so that a disk error is raised here and not in the writer's thread.
        self.writer.flush()

    def close(self, *, failed: bool) -> None:
        with self.lock:
            self.writer.close()


def format_markdown_table(run_options: Mapping[str, Any]) -> str:
    """The options as a Markdown table, one line per option.

    Example:
        >>> print(format_markdown_table({"schema": 1, "update": {"lr": 1e-6}}))
        | option | value |
        |---|---|
        | schema | `1` |
        | update.lr | `1e-06` |
    """
    table_lines = ["| option | value |", "|---|---|"]
    for section, section_value in run_options.items():
        options = section_value if isinstance(section_value, Mapping) else {"": section_value}
        for option_name, option_value in options.items():
            full_name = f"{section}.{option_name}" if option_name else section
            table_lines.append(f"| {full_name} | `{json.dumps(option_value)}` |")
    return "\n".join(table_lines)
