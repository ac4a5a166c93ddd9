"""Send the logs of a run folder to trackers, during training or afterwards.

A tracker never stops training: one that fails, at its start or later, is dropped with a notice. The
folder still has everything, and `poise track RUN` sends it later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterpoise.config.evaluation_settings import EvaluationSetting, group_by_setting
from counterpoise.config.load import read_tables
from counterpoise.errors import PoiseError, explain_damage, first_line, format_count
from counterpoise.run.trackers.panels import name_evaluation, name_metrics
from counterpoise.run.trackers.tracker import MetricRow, Tracker, check_installed
from counterpoise.store.folder import CONFIG, RunFolder, is_imported
from counterpoise.store.imported import read_origin_record
from counterpoise.variants import TRACKERS

LogLine = dict[str, Any]
# Log that is sent -> the field of its lines that holds the duration of the iteration or evaluation.
SENT_LOGS = {
    "metrics": "iteration_seconds",
    "evaluations": "evaluate_seconds",
    "benchmarks": "evaluate_seconds",
}


class TrackerFeed:
    """Sends trackers all lines that the logs of SENT_LOGS already have, then each new line.

    Example:
        feed = TrackerFeed(folder, ["tensorboard"], on_failure)  # sends what the folder holds
        feed.receive("metrics", {"iteration": 8, "success": 0.5})
        feed.close(failed=False)
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
        # Settings of the evaluations so far, in order of appearance: an ordered set.
        self.settings: dict[EvaluationSetting | None, None] = {}
        for tracker_name in names:
            with self._drop_on_failure(tracker_name):
                self.trackers[tracker_name] = TRACKERS.load(tracker_name)(
                    folder.path, out, load_run_options(folder.path)
                )
        for log_name, record, written_at in timed_log_lines(folder):
            self._send(log_name, record, written_at)

    def receive(self, log_name: str, record: LogLine) -> None:
        """Send a line that was just written to one of the folder's logs."""
        if log_name in SENT_LOGS:
            self._send(log_name, record, time.time())

    def close(self, *, failed: bool) -> None:
        for tracker_name, tracker in list(self.trackers.items()):
            with self._drop_on_failure(tracker_name):
                tracker.close(failed=failed)

    def _send(self, log_name: str, record: LogLine, written_at: float) -> None:
        row = MetricRow(record["iteration"], self._metric_values(log_name, record), written_at)
        for tracker_name, tracker in list(self.trackers.items()):
            with self._drop_on_failure(tracker_name):
                tracker.log(row)

    def _metric_values(self, log_name: str, record: LogLine) -> dict[str, float]:
        if log_name == "metrics":
            return name_metrics(record)
        (setting,) = group_by_setting([record])
        self.settings[setting] = None
        return name_evaluation(record, setting, first_setting=next(iter(self.settings)))

    @contextmanager
    def _drop_on_failure(self, tracker_name: str) -> Iterator[None]:
        try:
            yield
        except Exception as fault:  # of another package, the network or the disk
            self.trackers.pop(tracker_name, None)
            self.on_failure(tracker_name, fault)


def timed_log_lines(folder: RunFolder) -> list[tuple[str, LogLine, float]]:
    """(log, line, time) in the order of writing.

    Lines hold no time of day. The last one was written when its file was last modified; the times
    of earlier ones follow from the durations of iterations and evaluations.
    """
    log_records = [(log_name, record) for log_name in SENT_LOGS for record in folder.read(log_name)]
    # An evaluation follows the metrics of its iteration, and benchmarks follow the evaluation.
    order = list(SENT_LOGS)
    log_records.sort(key=lambda entry: (entry[1]["iteration"], order.index(entry[0])))
    log_files = [folder.path / f"{log_name}.jsonl" for log_name in SENT_LOGS]
    written_at = max(
        (log_file.stat().st_mtime for log_file in log_files if log_file.exists()), default=0.0
    )
    timed_records = []
    for log_name, record in reversed(log_records):
        timed_records.append((log_name, record, written_at))
        written_at -= record.get(SENT_LOGS[log_name]) or 0.0
    return timed_records[::-1]


def load_run_options(run_folder: Path) -> dict[str, Any]:
    """The run's options as tables; for an imported run, its origin."""
    if is_imported(run_folder):
        return read_origin_record(run_folder)
    return read_tables(run_folder / CONFIG)


@contextmanager
def track_run(
    folder: RunFolder, names: Sequence[str], notify: Callable[[str], None]
) -> Iterator[None]:
    """Inside the block, all lines of the logs of SENT_LOGS go to the trackers."""
    if not names:
        yield
        return

    def notify_failure(tracker_name: str, fault: Exception) -> None:
        notify(
            f"{tracker_name} is off: {first_line(fault)}; send the rest later with "
            f"poise track {folder.path} --to {tracker_name}"
        )

    feed = TrackerFeed(folder, names, notify_failure)
    folder.listeners.append(feed.receive)
    failed = True
    try:
        yield
        failed = False
    finally:
        folder.listeners.remove(feed.receive)
        feed.close(failed=failed)


def send_run(path: Path, names: Sequence[str], out: Path | None) -> list[str]:
    """Send a stored run to trackers (`poise track`) and return a line about each."""
    check_installed(names)
    folder = RunFolder(path) if is_imported(path) else RunFolder.open(path)
    num_iterations = len(folder.read("metrics"))
    if not num_iterations:
        raise PoiseError(f"{path} has no line in metrics.jsonl yet: there is nothing to send")

    def raise_failure(tracker_name: str, fault: Exception) -> None:
        raise PoiseError(f"{path} was not sent to {tracker_name}: {first_line(fault)}") from fault

    with explain_damage(path):
        feed = TrackerFeed(folder, list(dict.fromkeys(names)), raise_failure, out)
        feed.close(failed=False)
    return [
        f"{tracker_name}: {format_count(num_iterations, 'iteration')} -> {tracker.folder}"
        for tracker_name, tracker in feed.trackers.items()
    ]
