"""Send the logs of a run folder to trackers, during training or afterwards.

A tracker never stops training: one that fails, at its start or later, is dropped with a notice. The
folder still has everything, and `poise track RUN` sends it later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterpoise.config.evaluation_settings import EvaluationSetting, group_by_setting
from counterpoise.config.load import read_tables
from counterpoise.errors import PoiseError, explain_damage, first_line
from counterpoise.run.trackers.panels import name_evaluation, name_metrics
from counterpoise.run.trackers.tracker import MetricRow, Tracker, check_installed
from counterpoise.store.folder import CONFIG, IMPORTED, RunFolder, is_imported
from counterpoise.variants import TRACKERS

LogLine = dict[str, Any]
DURATION_FIELDS = {
    "metrics": "iteration_seconds",
    "evaluations": "evaluate_seconds",
}  # log -> its line's


class TrackerFeed:
    """Sends all lines of a folder's logs to trackers, then every new one.

    Example:
        sending = TrackerFeed(folder, ["tensorboard"], off)  # has sent what the folder holds by now
        sending.hear("metrics", {"iteration": 8, "success": 0.5})
        sending.close(failed=False)
    """

    def __init__(
        self,
        folder: RunFolder,
        names: Sequence[str],
        on_failure: Callable[[str, Exception], None],
        out: Path | None = None,
    ) -> None:
        self.on_failure = on_failure  # called with a tracker's name and its exception
        self.trackers: dict[str, Tracker] = {}
        self.settings: dict[
            EvaluationSetting | None, None
        ] = {}  # of the held-out lines so far, in order
        for name in names:
            with self._drop_on_failure(name):
                self.trackers[name] = TRACKERS.load(name)(
                    folder.path, out, load_run_options(folder.path)
                )
        for log, line, written_at in timed_log_lines(folder):
            self._send(log, line, written_at)

    def receive(self, log: str, line: LogLine) -> None:
        """Send a line that was just written to one of the folder's logs."""
        if log in DURATION_FIELDS:
            self._send(log, line, time.time())

    def close(self, *, failed: bool) -> None:
        for name, tracker in list(self.trackers.items()):
            with self._drop_on_failure(name):
                tracker.close(failed=failed)

    def _send(self, log: str, line: LogLine, at: float) -> None:
        row = MetricRow(line["iteration"], self._values(log, line), at)
        for name, tracker in list(self.trackers.items()):
            with self._drop_on_failure(name):
                tracker.log(row)

    def _values(self, log: str, line: LogLine) -> dict[str, float]:
        if log == "metrics":
            return name_metrics(line)
        (setting,) = group_by_setting([line])
        self.settings[setting] = None
        return name_evaluation(line, setting, first=next(iter(self.settings)))

    @contextmanager
    def _drop_on_failure(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as fault:  # of another package, the network or the disk
            self.trackers.pop(name, None)
            self.on_failure(name, fault)


def timed_log_lines(folder: RunFolder) -> list[tuple[str, LogLine, float]]:
    """(log, line, time) in the order of writing.

    Lines hold no time of day. The last one was written when its file was last modified; the times
    of earlier ones follow from the durations of iterations and evaluations.
    """
    lines = [(log, line) for log in DURATION_FIELDS for line in folder.read(log)]
    lines.sort(key=lambda each: (each[1]["iteration"], each[0] == "evaluations"))
    files = [folder.path / f"{log}.jsonl" for log in DURATION_FIELDS]
    written_at = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
    timed_lines = []
    for log, line in reversed(lines):
        timed_lines.append((log, line, written_at))
        written_at -= line.get(DURATION_FIELDS[log]) or 0.0
    return timed_lines[::-1]


def load_run_options(run: Path) -> dict[str, Any]:
    """The run's options as tables; for an imported run, its origin."""
    if is_imported(run):
        origin: dict[str, Any] = json.loads((run / IMPORTED).read_text(encoding="utf-8"))
        return origin
    return read_tables(run / CONFIG)


@contextmanager
def track_run(
    folder: RunFolder, names: Sequence[str], notify: Callable[[str], None]
) -> Iterator[None]:
    """Inside the block, all lines of the folder's logs go to the trackers."""
    if not names:
        yield
        return

    def off(name: str, fault: Exception) -> None:
        notify(
            f"{name} is off: {first_line(fault)}; send the rest later with "
            f"poise track {folder.path} --to {name}"
        )

    feed = TrackerFeed(folder, names, off)
    folder.listeners.append(feed.receive)
    try:
        yield
    except BaseException:
        feed.close(failed=True)
        raise
    feed.close(failed=False)


def send_run(path: Path, names: Sequence[str], out: Path | None) -> list[str]:
    """Send a stored run to trackers (`poise track`) and return a line about each."""
    check_installed(names)
    folder = RunFolder(path) if is_imported(path) else RunFolder.open(path)
    rows = len(folder.read("metrics"))
    if not rows:
        raise PoiseError(f"{path} has no line in metrics.jsonl yet: there is nothing to send")

    def off(name: str, fault: Exception) -> None:
        raise PoiseError(f"{path} was not sent to {name}: {first_line(fault)}") from fault

    with explain_damage(path):
        feed = TrackerFeed(folder, list(dict.fromkeys(names)), off, out)
        feed.close(failed=False)
    return [f"{name}: {rows} iterations -> {t.folder}" for name, t in feed.trackers.items()]
